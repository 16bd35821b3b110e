"""Segments over NIXL: the home reads the source's pages by itself; the side channel is the TCP one."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from nebula_protocol.data_plane import AskSegments, DataPlaneCard, Offers
from nebula_protocol.ids import WorkerId
from pic_worker.adapters.nixl.agent import NixlPages
from pic_worker.adapters.page_digest import digest_pages
from pic_worker.adapters.tcp.connecting import open_channel
from pic_worker.adapters.tcp.frame_socket import FrameSocket
from pic_worker.adapters.tcp.source_channel import SourceChannel, Verdict
from pic_worker.adapters.tcp.transport import judge
from pic_worker.core.arena_ids import Page
from pic_worker.transport import Landing, PageMemory, SegmentMove, TransferSession


class NixlTransport:
    def __init__(
        self, home: DataPlaneCard, secret: bytes, memory: PageMemory, pages: NixlPages, stall_s: float
    ) -> None:
        self._home = home
        self._secret = secret
        self._memory = memory
        self._pages = pages
        self._stall_s = stall_s

    @asynccontextmanager
    async def open(self, source: DataPlaneCard) -> AsyncIterator[TransferSession]:
        async with open_channel(source, self._home, self._secret, self._stall_s) as channel:
            yield NixlSession(channel, source.worker_id, self._memory, self._pages)


class NixlSession:
    def __init__(self, channel: SourceChannel, source_id: WorkerId, memory: PageMemory, pages: NixlPages) -> None:
        self._channel = channel
        self._source_id = source_id
        self._memory = memory
        self._pages = pages

    def ask(self, ask: AskSegments) -> AsyncIterator[Offers]:
        return self._channel.ask(ask)

    async def take(self, moves: Sequence[SegmentMove], landed: Landing) -> None:
        try:
            verdicts = [self._channel.expect(move.index, None) for move in moves]
            # The source digests while this side reads.
            await self._channel.take(tuple(move.index for move in moves))
            await self._pages.read(self._source_id, self._channel.welcome.attachment, moves)
            for move, coming in zip(moves, verdicts, strict=True):
                verdict = await self._channel.verdict(coming)
                digests = await digest_pages(self._memory, move.home_pages)
                landed(move.index, judge(Verdict(verdict.source_digests, digests)))
        except BaseException:
            self._channel.close("given up")
            raise


class NixlDelivery:
    """The source's side: only the digests are asked for."""

    def __init__(self, memory: PageMemory) -> None:
        self._memory = memory

    async def __call__(self, channel: FrameSocket, index: int, pages: Sequence[Page]) -> tuple[int, ...]:
        return await digest_pages(self._memory, pages)
