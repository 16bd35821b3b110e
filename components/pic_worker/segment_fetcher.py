"""The home's side of the data plane: brings a request's remote segments into the store before the request begins."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import structlog

from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.receipt import FallbackReason
from pic_worker.core.lease_table import LeaseId
from pic_worker.core.store_entry import SegmentKey
from pic_worker.core.transfer_outcome import outcome_of
from pic_worker.core.transfer_speed import TransferSpeed
from pic_worker.segment_flight import Brought, Flight, RemoteSegment, SegmentResult
from pic_worker.source_transfer import SourceTransfer, TransferPorts

log = structlog.get_logger()

_CLOSE_LIMIT_S = 2.0


class SegmentFetcher:
    """Any number of requests at once; two that want the same segment cause one transfer."""

    def __init__(self, ports: TransferPorts, *, veto_ratio: float) -> None:
        self._ports = ports
        self._veto_ratio = veto_ratio
        self._speeds: dict[WorkerId, TransferSpeed] = {}
        self._flights: dict[SegmentKey, Flight] = {}
        self._running: set[asyncio.Task[None]] = set()

    @property
    def num_running(self) -> int:
        """Transfers that have not ended: also given-up ones whose pages may still be written from outside."""
        return len(self._running)

    @asynccontextmanager
    async def bring(
        self, request_id: RequestId, wanted: Sequence[RemoteSegment], wait_budget_s: float
    ) -> AsyncIterator[Mapping[SegmentKey, SegmentResult]]:
        """Waits for all of them, at most `wait_budget_s`; what has come stays in place until the block is left.

        It does not fail for what others do: what did not come is to be computed, and its result says why.
        """
        deadline_s = self._ports.clock() + wait_budget_s
        flights, own = self._board(wanted)
        try:
            await self._fly(request_id, flights, own, deadline_s)
            yield {key: _word_on(flight) for key, flight in flights.items()}
        finally:
            for flight in flights.values():
                flight.leave()

    async def close(self) -> None:
        """Gives up all transfers. Room that a source may still write to stays taken."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=_CLOSE_LIMIT_S)
        if self._running:
            log.warning("transfers_in_doubt", num_transfers=len(self._running))

    # ----

    async def _fly(
        self, request_id: RequestId, flights: Mapping[SegmentKey, Flight], own: Sequence[Flight], deadline_s: float
    ) -> None:
        tasks = [
            self._launch(request_id, source_id, worthy, deadline_s)
            for source_id, group in _by_source(own).items()
            if (worthy := self._without_vetoed(group, self._speed_of(source_id)))
        ]
        try:
            undecided = [flight.result for flight in flights.values() if not flight.is_decided]
            if undecided:
                await asyncio.wait(undecided, timeout=max(0.0, deadline_s - self._ports.clock()))
        finally:
            # Too late from here on, for others on the same flights too: whoever began them stops them.
            for task in tasks:
                task.cancel()
            for flight in own:
                self._end(flight)

    def _board(self, wanted: Sequence[RemoteSegment]) -> tuple[dict[SegmentKey, Flight], list[Flight]]:
        """A flight for each segment, and those that this request has to begin."""
        flights: dict[SegmentKey, Flight] = {}
        own: list[Flight] = []
        for segment in wanted:
            if segment.key in flights:
                continue
            flight = self._flights.get(segment.key)
            if flight is None or flight.wanted.token_bytes != segment.token_bytes:
                flight = Flight(segment, self._count, self._let_go)
                own.append(flight)
                self._flights.setdefault(segment.key, flight)
            flight.enter(segment)
            flights[segment.key] = flight
        return flights, own

    def _launch(
        self, request_id: RequestId, source_id: WorkerId, group: list[Flight], deadline_s: float
    ) -> "asyncio.Task[None]":
        transfer = SourceTransfer(
            self._ports,
            request_id=request_id,
            source_id=source_id,
            flights=group,
            deadline_s=deadline_s,
            speed=self._speed_of(source_id),
        )
        task = asyncio.create_task(transfer.run())
        self._running.add(task)
        task.add_done_callback(lambda done: self._ended(done, group))
        return task

    def _speed_of(self, source_id: WorkerId) -> TransferSpeed:
        return self._speeds.setdefault(source_id, TransferSpeed())

    def _without_vetoed(self, group: list[Flight], speed: TransferSpeed) -> list[Flight]:
        """What is worth it. Segments that are only there later are not judged: the router has planned with that."""
        plain = [flight for flight in group if not flight.wanted.is_joined and flight.wanted.compute_s is not None]
        compute_s = sum(flight.wanted.compute_s or 0.0 for flight in plain)
        num_bytes = sum(flight.wanted.num_tokens for flight in plain) * self._ports.kv_bytes_per_token
        if not plain or speed.is_worth_it(num_bytes, compute_s, self._veto_ratio, self._ports.clock()):
            return group
        for flight in plain:
            flight.fail(FallbackReason.VETO)
        return [flight for flight in group if not flight.is_decided]

    def _ended(self, task: "asyncio.Task[None]", group: list[Flight]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("segment_transfer_failed", error=repr(error))
        for flight in group:
            flight.fail(FallbackReason.SOURCE_GONE)

    def _end(self, flight: Flight) -> None:
        """Who wants the segment from now on begins anew."""
        flight.fail(FallbackReason.LATE)
        if self._flights.get(flight.wanted.key) is flight:
            del self._flights[flight.wanted.key]

    def _count(self, result: SegmentResult) -> None:
        self._ports.meter.count_transfer(outcome_of(result.done if isinstance(result, Brought) else result))

    def _let_go(self, flight: Flight, lease_id: LeaseId) -> None:
        self._ports.catalogue.release(lease_id)
        if not flight.is_kept:
            self._ports.catalogue.drop((flight.wanted.key,))


def _by_source(flights: Sequence[Flight]) -> dict[WorkerId, list[Flight]]:
    groups: dict[WorkerId, list[Flight]] = {}
    for flight in flights:
        groups.setdefault(flight.wanted.from_worker, []).append(flight)
    return groups


def _word_on(flight: Flight) -> SegmentResult:
    return flight.result.result() if flight.is_decided else FallbackReason.LATE
