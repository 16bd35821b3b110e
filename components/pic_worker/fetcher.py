"""Brings segments from other workers: asks, waits for the simulated transfer, reports each segment once."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from nebula_protocol.cost import LinkFit
from nebula_protocol.ids import RequestId, SegmentHash, WorkerId
from nebula_protocol.messages import FetchedSegment, FetchReply, FetchRequest
from nebula_protocol.receipt import FallbackReason
from pic_worker.core.effects import FetchCommand
from pic_worker.core.link import Link
from pic_worker.errors import PeerGoneError
from pic_worker.ports import Clock, Peers

# Beyond the peer's own waiting and the transfer, what a busy machine may add before a live peer counts as gone.
FETCH_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Fetched:
    request_id: RequestId
    segment_hash: SegmentHash
    result: FetchedSegment | FallbackReason


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
    ) -> None:
        self._worker_id = worker_id
        self._peers = peers
        self._ingress = ingress
        self._link_fit = link_fit
        self._kv_bytes_per_token = kv_bytes_per_token
        self._clock = clock
        self._running: set[asyncio.Task[None]] = set()

    def start(self, command: FetchCommand, report: Callable[[Fetched], None]) -> None:
        """Fetches in the background; `report` gets every segment of the command exactly once."""
        task = asyncio.create_task(self._fetch(command, report))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _fetch(self, command: FetchCommand, report: Callable[[Fetched], None]) -> None:
        try:
            reply = await self._ask(command)
        except PeerGoneError:
            for wanted in command.segments:
                report(Fetched(command.request_id, wanted.segment_hash, FallbackReason.SOURCE_GONE))
            return
        answered = {segment.segment_hash: segment for segment in reply.segments}
        arrived_s = self._ingress.receive(sum(segment.kv_bytes for segment in reply.segments), self._clock())
        await asyncio.sleep(max(0.0, arrived_s - self._clock()))
        for wanted in command.segments:
            result = answered.get(wanted.segment_hash, FallbackReason.NOT_THERE)
            report(Fetched(command.request_id, wanted.segment_hash, result))

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
