"""The home's end of the side channel: one question, its answers, and the word on what was taken."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import msgspec

from nebula_protocol.data_plane import AskSegments, Offers, PagesFollow, PagesLost, PagesSent, TakeSegments, Welcome
from nebula_protocol.errors import DecodeError
from nebula_protocol.ids import WorkerId
from pic_worker.adapters.tcp.frame_socket import ChannelLostError, FrameSocket
from pic_worker.core.transfer_limits import check_offers, max_offers_bytes
from pic_worker.errors import PeerGoneError

_DECODER = msgspec.msgpack.Decoder(Offers | PagesFollow | PagesSent | PagesLost)

_PATIENCE_S = 300.0
"""Between segments that were offered and those that are taken, the home itself takes its time."""

Receiver = Callable[[FrameSocket], Awaitable[tuple[int, ...]]]
"""Takes a segment's bytes off the socket; returns their digests."""


@dataclass(slots=True)
class _Expected:
    verdict: "asyncio.Future[Verdict]"
    receiver: Receiver | None
    digests: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the source says of a segment, beside what was received here."""

    source_digests: tuple[int, ...] | None
    """None: its lease had ended."""
    received_digests: tuple[int, ...]
    """Empty where no bytes come over this channel."""


class SourceChannel:
    """One task reads, and gives each frame to whom it concerns."""

    def __init__(self, channel: FrameSocket, welcome: Welcome, source_id: WorkerId) -> None:
        self.welcome = welcome
        self._channel = channel
        self._source_id = source_id
        self._answers: asyncio.Queue[Offers | PeerGoneError] = asyncio.Queue()
        self._expected: dict[int, _Expected] = {}
        self._reading: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        self._lost: PeerGoneError | None = None

    async def ask(self, ask: AskSegments) -> AsyncIterator[Offers]:
        """As `TransferSession.ask`."""
        try:
            await self._channel.send(ask)
        except ChannelLostError as error:
            raise self._gone(str(error)) from error
        self._reading = asyncio.create_task(self._read(ask))
        while True:
            answer = await self._answers.get()
            if isinstance(answer, PeerGoneError):
                raise answer
            yield answer
            if answer.is_last:
                return

    def expect(self, index: int, receiver: Receiver | None) -> "asyncio.Future[Verdict]":
        """What will be said of a segment that is going to be taken."""
        expected = _Expected(asyncio.get_running_loop().create_future(), receiver)
        if self._lost is not None:
            raise self._lost
        self._expected[index] = expected
        return expected.verdict

    async def take(self, indices: tuple[int, ...]) -> None:
        """
        Raises:
            PeerGoneError: the source is gone.
        """
        try:
            async with self._sending:
                await self._channel.send(TakeSegments(indices=indices))
        except ChannelLostError as error:
            raise self._gone(str(error)) from error

    async def verdict(self, coming: "asyncio.Future[Verdict]") -> Verdict:
        """
        Raises:
            PeerGoneError: the source is gone, or stalls.
        """
        heard = -1
        while not coming.done():
            if heard == self._channel.num_received_bytes:
                raise self._gone("nothing comes any more")
            heard = self._channel.num_received_bytes
            await asyncio.wait((coming,), timeout=self._channel.stall_s)
        return coming.result()

    def close(self, reason: str = "closed") -> None:
        """At once: from now on nothing is received."""
        if self._reading is not None:
            self._reading.cancel()
        self._fail(reason)
        self._channel.close()

    # ----

    async def _read(self, ask: AskSegments) -> None:
        max_bytes = max_offers_bytes(ask, self.welcome.source.geometry.page_tokens)
        undecided = set(range(len(ask.segments)))
        # What is there is offered at once, what is computed within its time; behind that it is the home's turn, and
        # those who take watch for themselves that something comes.
        idle_s = 0.0
        try:
            while True:
                frame = await self._channel.receive(_DECODER, max_bytes, idle_s=idle_s)
                await self._handle(frame, ask, undecided)
                idle_s = ask.wait_s if undecided else _PATIENCE_S
        except (ChannelLostError, DecodeError) as error:
            self._fail(str(error))

    async def _handle(
        self, frame: Offers | PagesFollow | PagesSent | PagesLost, ask: AskSegments, undecided: set[int]
    ) -> None:
        match frame:
            case Offers():
                check_offers(frame, ask, undecided, self.welcome)
                self._answers.put_nowait(frame)
            case PagesFollow(index=index):
                expected = self._expected.get(index)
                if expected is None or expected.receiver is None or expected.digests:
                    raise DecodeError(f"pages of segment {index}, which nobody takes")
                expected.digests = await expected.receiver(self._channel)
            case PagesSent(index=index, digests=digests):
                self._settle(index, digests)
            case PagesLost(index=index):
                self._settle(index, None)

    def _settle(self, index: int, digests: tuple[int, ...] | None) -> None:
        expected = self._expected.pop(index, None)
        if expected is None:
            raise DecodeError(f"word on segment {index}, which nobody takes")
        if not expected.verdict.done():
            expected.verdict.set_result(Verdict(digests, expected.digests))

    def _fail(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = self._gone(reason)
        self._answers.put_nowait(self._lost)
        for expected in self._expected.values():
            if not expected.verdict.done():
                expected.verdict.set_exception(self._lost)
                # Whoever waited may be gone.
                expected.verdict.exception()
        self._expected.clear()

    def _gone(self, reason: str) -> PeerGoneError:
        return PeerGoneError(self._source_id, reason)
