"""What vLLM's processes tell this one, and what they are told, over local sockets."""

from collections.abc import AsyncIterator

import msgspec
import structlog
import zmq
import zmq.asyncio

from nebula_protocol.codec import encode
from pic_worker.adapters.vllm.block_event_wire import BlockEventBatch, decode_batch
from pic_worker.adapters.vllm.catalogue_wire import CatalogueReply, ControlMessage
from pic_worker.adapters.vllm.engine_wire import EngineNews
from pic_worker.adapters.vllm.sockets import SocketFolder

log = structlog.get_logger()

_SEQUENCE_BYTES = 8


class EngineFeed:
    """Made before the engine, so that nothing it says is missed."""

    def __init__(self, sockets: SocketFolder) -> None:
        self._context = zmq.asyncio.Context()
        self._news = self._context.socket(zmq.PULL)
        self._control = self._context.socket(zmq.DEALER)
        self._blocks = self._context.socket(zmq.SUB)
        # No limit: a message lost here is a wrong index at every router.
        for socket in (self._news, self._control, self._blocks):
            socket.set_hwm(0)
        self._news.bind(sockets.news_url)
        self._control.bind(sockets.control_url)
        self._blocks.setsockopt(zmq.SUBSCRIBE, b"")
        # vLLM binds this one later.
        self._blocks.setsockopt(zmq.RECONNECT_IVL, 50)
        self._blocks.connect(sockets.block_events_url)

    async def news(self) -> AsyncIterator[EngineNews]:
        """
        Raises:
            msgspec.MsgspecError: the connector is of another version.
        """
        decoder = msgspec.msgpack.Decoder(EngineNews)
        while True:
            yield decoder.decode(await self._news.recv())

    async def block_events(self) -> AsyncIterator[BlockEventBatch | None]:
        """None stands for messages that were lost."""
        expected: int | None = None
        while True:
            *_, sequence_bytes, payload = await self._blocks.recv_multipart()
            sequence = int.from_bytes(sequence_bytes[:_SEQUENCE_BYTES], "big")
            if expected is not None and sequence != expected:
                log.warning("block_events_lost", expected=expected, got=sequence)
                yield None
            expected = sequence + 1
            yield decode_batch(payload)

    async def control(self, message: ControlMessage) -> None:
        await self._control.send(encode(message))

    async def replies(self) -> AsyncIterator[CatalogueReply]:
        """
        Raises:
            msgspec.MsgspecError: the connector is of another version.
        """
        decoder: msgspec.msgpack.Decoder[CatalogueReply] = msgspec.msgpack.Decoder(CatalogueReply)
        while True:
            yield decoder.decode(await self._control.recv())

    def close(self) -> None:
        self._context.destroy(linger=0)
