"""Segments over plain TCP: from the source's pages into the socket, from the socket into the home's pages."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from nebula_protocol.data_plane import AskSegments, DataPlaneCard, Offers, PagesFollow
from pic_worker.adapters.tcp.connecting import open_channel
from pic_worker.adapters.tcp.frame_socket import FrameSocket
from pic_worker.adapters.tcp.page_stream import receive_pages, send_pages
from pic_worker.adapters.tcp.source_channel import Receiver, SourceChannel, Verdict
from pic_worker.core.arena_ids import Page
from pic_worker.transport import Landed, Landing, PageMemory, SegmentMove, TransferSession


class TcpTransport:
    def __init__(self, home: DataPlaneCard, secret: bytes, memory: PageMemory, stall_s: float) -> None:
        self._home = home
        self._secret = secret
        self._memory = memory
        self._stall_s = stall_s

    @asynccontextmanager
    async def open(self, source: DataPlaneCard) -> AsyncIterator[TransferSession]:
        async with open_channel(source, self._home, self._secret, self._stall_s) as channel:
            yield TcpSession(channel, self._memory)


class TcpSession:
    def __init__(self, channel: SourceChannel, memory: PageMemory) -> None:
        self._channel = channel
        self._memory = memory

    def ask(self, ask: AskSegments) -> AsyncIterator[Offers]:
        return self._channel.ask(ask)

    async def take(self, moves: Sequence[SegmentMove], landed: Landing) -> None:
        try:
            verdicts = [self._channel.expect(move.index, self._receiver(move.home_pages)) for move in moves]
            await self._channel.take(tuple(move.index for move in moves))
            for move, verdict in zip(moves, verdicts, strict=True):
                landed(move.index, judge(await self._channel.verdict(verdict)))
        except BaseException:
            # Bytes for these pages may be on their way: nothing is read from now on.
            self._channel.close("given up")
            raise

    def _receiver(self, pages: Sequence[Page]) -> Receiver:
        return lambda channel: receive_pages(channel, self._memory, pages)


def judge(verdict: Verdict) -> Landed:
    if verdict.source_digests is None:
        return Landed.LEASE_ENDED
    return Landed.INTACT if verdict.source_digests == verdict.received_digests else Landed.DAMAGED


class TcpDelivery:
    """The source's side: the pages follow."""

    def __init__(self, memory: PageMemory) -> None:
        self._memory = memory

    async def __call__(self, channel: FrameSocket, index: int, pages: Sequence[Page]) -> tuple[int, ...]:
        await channel.send(PagesFollow(index=index))
        return await send_pages(channel, self._memory, pages)
