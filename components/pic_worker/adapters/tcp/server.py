"""The source's end of the side channel: who may come, what they are told, and their pages."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Protocol

import msgspec
import structlog

from nebula_protocol.data_plane import AskSegments, DataPlaneCard, PagesLost, PagesSent, TakeSegments, Welcome
from nebula_protocol.errors import DecodeError
from nebula_protocol.ids import WorkerId
from pic_worker.adapters.tcp.frame_socket import ChannelLostError, FrameSocket
from pic_worker.adapters.tcp.introduction import admit
from pic_worker.core.arena_ids import Page
from pic_worker.core.transfer_limits import MAX_HOME_FRAME_BYTES, MAX_WAIT_S, check_ask, check_indices
from pic_worker.data_plane_settings import DataPlaneSettings
from pic_worker.errors import CatalogueGoneError, LeaseEndedError, StartError
from pic_worker.segment_server import SegmentServer, ServedAsk

log = structlog.get_logger()

_BACKLOG = 128
_ASK_DECODER = msgspec.msgpack.Decoder(AskSegments)
_TAKE_DECODER = msgspec.msgpack.Decoder(TakeSegments)


class Delivery(Protocol):
    """How pages get to the home: sent here, or read by it. Returns the digests of what was there."""

    async def __call__(self, channel: FrameSocket, index: int, pages: Sequence[Page]) -> tuple[int, ...]: ...


class DataServer:
    """One worker's. Strangers get a limited time and a limited number of bytes."""

    def __init__(
        self,
        settings: DataPlaneSettings,
        secret: bytes,
        segments: SegmentServer,
        *,
        deliver: Delivery,
        num_pages: int,
        attachment: bytes = b"",
    ) -> None:
        self._settings = settings
        self._secret = secret
        self._segments = segments
        self._deliver = deliver
        self._num_pages = num_pages
        self._attachment = attachment
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def num_peers(self) -> int:
        """Connections now, beside the listener."""
        return len(self._tasks) - 1 if self._listener else 0

    def start(self, card: DataPlaneCard) -> DataPlaneCard:
        """Listens; the card with the address as it is.

        Raises:
            StartError: the address is not to be had.
        """
        try:
            listener = socket.create_server((self._settings.host, self._settings.port), backlog=_BACKLOG)
        except OSError as error:
            where = f"{self._settings.host}:{self._settings.port}"
            raise StartError(f"the data plane cannot listen on {where}: {error}") from error
        listener.setblocking(False)
        self._listener = listener
        port: int = listener.getsockname()[1]
        found = msgspec.structs.replace(card, host=self._settings.host, port=port)
        welcome = Welcome(source=found, num_pages=self._num_pages, attachment=self._attachment)
        self._track(asyncio.create_task(self._accept(listener, welcome)))
        return found

    async def close(self) -> None:
        """Ends all connections and their leases."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _accept(self, listener: socket.socket, welcome: Welcome) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, _ = await loop.sock_accept(listener)
            except OSError as error:
                # Out of files, or the peer is gone again already.
                log.warning("data_peer_not_accepted", error=str(error))
                await asyncio.sleep(0.1)
                continue
            if self.num_peers >= self._settings.max_peers:
                log.warning("data_peer_refused", reason="too many peers", max_peers=self._settings.max_peers)
                connected.close()
                continue
            self._track(asyncio.create_task(self._serve(connected, welcome)))

    def _track(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connected: socket.socket, welcome: Welcome) -> None:
        channel = FrameSocket(connected, self._settings.stall_s)
        home: WorkerId | None = None
        try:
            async with asyncio.timeout(self._settings.stall_s):
                home = await admit(channel, self._secret, welcome)
            ask = await channel.receive(_ASK_DECODER, MAX_HOME_FRAME_BYTES)
            check_ask(ask, welcome.source)
            await self._answer(channel, self._segments.serve(ask))
        except (ChannelLostError, TimeoutError) as error:
            if home is None:
                log.warning("data_peer_refused", reason=str(error) or "it takes too long")
        except (DecodeError, CatalogueGoneError) as error:
            log.warning("data_peer_dismissed", home_worker_id=home, reason=str(error))
        finally:
            channel.close()

    async def _answer(self, channel: FrameSocket, served: ServedAsk) -> None:
        conversation = _Conversation(channel, served, self._deliver)
        try:
            await conversation.run()
        finally:
            served.close()


class _Conversation:
    """With one home, from its question until it hangs up."""

    def __init__(self, channel: FrameSocket, served: ServedAsk, deliver: Delivery) -> None:
        self._channel = channel
        self._served = served
        self._deliver = deliver
        self._wanted: asyncio.Queue[int] = asyncio.Queue()
        self._taken: set[int] = set()
        self._sending = asyncio.Lock()

    async def run(self) -> None:
        """
        Raises:
            ChannelLostError: the home has hung up, or stalls.
            DecodeError: it breaks the rules.
            CatalogueGoneError: the engine is gone.
        """
        tasks = [asyncio.ensure_future(part) for part in (self._offer(), self._listen(), self._send())]
        try:
            # Offering ends by itself, the others do not.
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _offer(self) -> None:
        async for offers in self._served.offers():
            async with self._sending:
                await self._channel.send(offers)

    async def _listen(self) -> None:
        while True:
            take = await self._channel.receive(_TAKE_DECODER, MAX_HOME_FRAME_BYTES, idle_s=MAX_WAIT_S)
            check_indices(take.indices, self._served.offered() - self._taken)
            self._taken.update(take.indices)
            for index in take.indices:
                self._wanted.put_nowait(index)

    async def _send(self) -> None:
        while True:
            index = await self._wanted.get()
            async with self._sending:
                await self._channel.send(await self._deliver_one(index))

    async def _deliver_one(self, index: int) -> PagesSent | PagesLost:
        try:
            segment = self._served.hold(index)
        except LeaseEndedError:
            return PagesLost(index=index)
        digests = await self._deliver(self._channel, index, segment.pages)
        # Asked again behind the last byte: pages that another entry has by now are no longer the segment's.
        return PagesSent(index=index, digests=digests) if self._served.was_held(index) else PagesLost(index=index)
