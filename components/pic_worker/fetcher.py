"""Brings segments from other workers: asks, waits for the simulated transfer, reports each segment once."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from nebula_protocol.cost import LinkFit
from nebula_protocol.ids import DomainId, RequestId, SegmentHash, WorkerEpoch, WorkerId
from nebula_protocol.messages import FetchedSegment, FetchReply, FetchRequest, WantedSegment
from nebula_protocol.receipt import FallbackReason
from pic_worker.core.effects import FetchCommand
from pic_worker.core.link import Link
from pic_worker.core.stream import Stream
from pic_worker.core.transfer_outcome import TransferOutcome, outcome_of
from pic_worker.errors import PeerGoneError
from pic_worker.ports import Clock, Peers, TransferMeter

# Beyond the peer's own waiting and the transfer, what a busy machine may add before a live peer counts as gone.
FETCH_GRACE_S = 2.0
# How long a peer that should have sent all may take to say that it is still there.
SENT_GRACE_S = 0.5


@dataclass(frozen=True, slots=True)
class Fetched:
    request_id: RequestId
    segment_hash: SegmentHash
    result: FetchedSegment | FallbackReason


@dataclass(frozen=True, slots=True)
class Coming:
    """A segment on its way."""

    request_id: RequestId
    segment_hash: SegmentHash
    stream: Stream


class Fetcher:
    """Any number of fetches at once; several sources share the ingress link."""

    def __init__(
        self,
        *,
        worker_id: WorkerId,
        peers: Peers,
        ingress: Link,
        link_fit: LinkFit,
        kv_bytes_per_token: int,
        clock: Clock,
        meter: TransferMeter,
    ) -> None:
        self._worker_id = worker_id
        self._peers = peers
        self._ingress = ingress
        self._link_fit = link_fit
        self._kv_bytes_per_token = kv_bytes_per_token
        self._clock = clock
        self._meter = meter
        self._running: set[asyncio.Task[None]] = set()

    def start(
        self,
        command: FetchCommand,
        report: Callable[[Fetched], None],
        announce: Callable[[Coming], None] = lambda _: None,
    ) -> None:
        """Fetches in the background.

        Args:
            report: gets every segment of the command exactly once.
            announce: gets those that are on their way before.
        """
        task = asyncio.create_task(self._fetch(command, report, announce))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _fetch(
        self, command: FetchCommand, report: Callable[[Fetched], None], announce: Callable[[Coming], None]
    ) -> None:
        try:
            reply = await self._ask(command)
        except PeerGoneError:
            for wanted in command.segments:
                self._report(command, wanted, FallbackReason.SOURCE_GONE, report)
            return
        answered: dict[SegmentHash, FetchedSegment | FallbackReason] = {
            segment.segment_hash: segment for segment in reply.segments
        }
        stream = self._take_in(reply)
        for segment in reply.segments:
            if segment.token_bytes is not None:
                announce(Coming(command.request_id, segment.segment_hash, stream))
        begun_s = self._clock()
        await asyncio.sleep(max(0.0, stream.last_at_s - begun_s))
        if reply.last_in_s and not await self._is_there(command.from_worker.worker_id, reply.epoch):
            answered = dict.fromkeys(answered, FallbackReason.SOURCE_GONE)
        elif reply.last_in_s:
            self._meter.observe_copy(self._clock() - begun_s)
        for wanted in command.segments:
            self._report(command, wanted, answered.get(wanted.segment_hash, FallbackReason.NOT_THERE), report)

    def _report(
        self,
        command: FetchCommand,
        wanted: WantedSegment,
        result: FetchedSegment | FallbackReason,
        report: Callable[[Fetched], None],
    ) -> None:
        if isinstance(result, FallbackReason):
            self._meter.count_transfer(outcome_of(result))
        elif result.token_bytes is None:
            self._meter.count_transfer(TransferOutcome.NOT_THERE)
        else:
            self._meter.count_transfer(TransferOutcome.JOINED if wanted.join else TransferOutcome.FETCHED)
            self._meter.count_received(result.kv_bytes)
        report(Fetched(command.request_id, wanted.segment_hash, result))

    async def _is_there(self, peer: WorkerId, epoch: WorkerEpoch) -> bool:
        """Whether the peer lived on while it sent. Real bytes would tell by coming; these are only said to come."""
        nothing = FetchRequest(
            request_id=RequestId(""), from_worker=self._worker_id, domain_id=DomainId(""), wait_s=0.0, segments=()
        )
        try:
            return (await self._peers.fetch(peer, nothing, SENT_GRACE_S)).epoch == epoch
        except PeerGoneError:
            return False

    def _take_in(self, reply: FetchReply) -> Stream:
        now_s = self._clock()
        stream = Stream(now_s + reply.first_in_s, now_s + reply.last_in_s)
        num_bytes = sum(segment.kv_bytes for segment in reply.segments)
        return self._ingress.take(num_bytes, stream, now_s) if num_bytes else stream

    async def _ask(self, command: FetchCommand) -> FetchReply:
        request = FetchRequest(
            request_id=command.request_id,
            from_worker=self._worker_id,
            domain_id=command.domain_id,
            wait_s=command.wait_s,
            segments=command.segments,
        )
        kv_bytes = sum(wanted.num_tokens for wanted in command.segments) * self._kv_bytes_per_token
        timeout_s = command.wait_s + self._link_fit.transfer_s(kv_bytes) + FETCH_GRACE_S
        return await self._peers.fetch(command.from_worker.worker_id, request, timeout_s)
