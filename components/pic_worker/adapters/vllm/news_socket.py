"""The connector's end of the two local sockets to the worker's process. Nothing here waits."""

import msgspec
import structlog
import zmq

from pic_worker.adapters.vllm.engine_wire import EngineControl, EngineNews

_log = structlog.get_logger(__name__)


class NewsSocket:
    """News out, control messages in. What nobody takes yet is kept in order, without bound: both processes live and
    die together."""

    def __init__(self, news_url: str, control_url: str) -> None:
        self._context = zmq.Context()
        self._news = self._connect(zmq.PUSH, news_url)
        self._control = self._connect(zmq.PULL, control_url)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[EngineControl] = msgspec.msgpack.Decoder(EngineControl)

    def send(self, news: EngineNews) -> None:
        self._news.send(self._encoder.encode(news), zmq.NOBLOCK)

    def receive(self) -> list[EngineControl]:
        """The messages that have come since the last look; those that cannot be read are logged and left out."""
        messages: list[EngineControl] = []
        while self._control.poll(0):
            try:
                messages.append(self._decoder.decode(self._control.recv(zmq.NOBLOCK)))
            except msgspec.DecodeError as error:
                _log.warning("engine_control_unreadable", error=str(error))
        return messages

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _connect(self, kind: int, url: str) -> "zmq.Socket[bytes]":
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        # No bound on what waits to be sent: a full queue would block the engine.
        socket.set_hwm(0)
        socket.connect(url)
        return socket
