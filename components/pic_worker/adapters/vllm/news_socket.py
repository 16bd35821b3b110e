"""The connector's end of the local socket that takes news to the worker's process. Nothing here waits."""

import msgspec
import zmq

from pic_worker.adapters.vllm.engine_wire import EngineNews


class NewsSocket:
    """What nobody takes yet is kept in order, without bound: both processes live and die together.

    Used by one thread at a time.
    """

    def __init__(self, news_url: str) -> None:
        self._context = zmq.Context()
        self._news: zmq.Socket[bytes] = self._context.socket(zmq.PUSH)
        # No bound on what waits to be sent: a full queue would block the engine.
        self._news.set_hwm(0)
        self._news.connect(news_url)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, news: EngineNews) -> None:
        self._news.send(self._encoder.encode(news), zmq.NOBLOCK)

    def close(self) -> None:
        self._context.destroy(linger=0)
