"""The source's side of the data plane: offers segments, holds them while they are copied, lets go by itself."""

import asyncio
from collections.abc import AsyncIterator

import structlog

from nebula_protocol.data_plane import AskSegments, Offers, SegmentOffer
from nebula_protocol.tokens import TOKEN_DTYPE
from pic_worker.catalogue import LeasedSegment
from pic_worker.core.lease_table import LeaseId, LeaseTable
from pic_worker.core.store_entry import SegmentKey
from pic_worker.errors import LeaseEndedError
from pic_worker.orderly_catalogue import OrderlyCatalogue
from pic_worker.ports import Clock, TransferMeter
from pic_worker.segment_arrivals import SegmentArrivals

log = structlog.get_logger()


class SegmentServer:
    """Serves any number of peers; `run` ends the leases that nobody ends."""

    def __init__(
        self,
        *,
        catalogue: OrderlyCatalogue,
        arrivals: SegmentArrivals,
        lease_s: float,
        join_grace_s: float,
        clock: Clock,
        kv_bytes_per_token: int,
        meter: TransferMeter,
    ) -> None:
        self.catalogue = catalogue
        self.arrivals = arrivals
        self.join_grace_s = join_grace_s
        self._leases = LeaseTable(lease_s)
        self._clock = clock
        self._kv_bytes_per_token = kv_bytes_per_token
        self._meter = meter
        self._granted = asyncio.Event()

    @property
    def num_leases(self) -> int:
        return len(self._leases)

    def serve(self, ask: AskSegments) -> "ServedAsk":
        """One peer's question, until it is closed."""
        return ServedAsk(self, ask)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            end_s = self._leases.next_end_s()
            if end_s is None:
                self._granted.clear()
                await self._granted.wait()
                continue
            await asyncio.sleep(max(0.0, end_s - self._clock()))
            for lease_id in self._leases.take_ended(self._clock()):
                log.warning("segment_lease_expired")
                self.catalogue.release(lease_id)

    def count_sent(self, num_tokens: int) -> None:
        self._meter.count_sent(num_tokens * self._kv_bytes_per_token)

    def grant(self, lease_id: LeaseId) -> None:
        self._leases.grant(lease_id, self._clock())
        self._granted.set()

    def holds(self, lease_id: LeaseId) -> bool:
        return self._leases.holds(lease_id, self._clock())

    def renew(self, lease_id: LeaseId) -> bool:
        return self._leases.renew(lease_id, self._clock())

    def end(self, lease_id: LeaseId) -> None:
        if self._leases.end(lease_id):
            self.catalogue.release(lease_id)


class ServedAsk:
    """What one peer asked for: what is here at once, what is coming when it has come."""

    def __init__(self, server: SegmentServer, ask: AskSegments) -> None:
        self._server = server
        self._ask = ask
        self._leases: set[LeaseId] = set()
        self._held: dict[int, tuple[LeaseId, LeasedSegment]] = {}

    async def offers(self) -> AsyncIterator[Offers]:
        """Everything that is asked for, each once.

        Raises:
            CatalogueGoneError: the engine is gone, and what was offered with it.
        """
        wanted = range(len(self._ask.segments))
        joined = [index for index in wanted if self._ask.segments[index].join]
        # They wait already while the store is asked, so that what is stored meanwhile is not missed.
        waits = {asyncio.ensure_future(self._arrive(index)): index for index in joined}
        try:
            found = await self._lease(wanted)
            pending = {task for task, index in waits.items() if index not in self._held}
            kept = {waits[task] for task in pending}
            absent = tuple(index for index in wanted if index not in self._held and index not in kept)
            yield Offers(there=found, absent=absent, is_last=not pending)
            while pending:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                found = await self._lease([waits[task] for task in done if task.result()])
                absent = tuple(waits[task] for task in done if waits[task] not in self._held)
                yield Offers(there=found, absent=absent, is_last=not pending)
        finally:
            for task in waits:
                task.cancel()

    def hold(self, index: int) -> LeasedSegment:
        """An offered segment; its lease lasts anew from now.

        Raises:
            LeaseEndedError: it had ended.
        """
        lease_id, segment = self._held[index]
        if not self._server.renew(lease_id):
            raise LeaseEndedError(f"the lease of segment {index} has ended")
        return segment

    def was_held(self, index: int) -> bool:
        """Whether the pages of an offered segment have been its own until now, when the peer has them all."""
        lease_id, _ = self._held[index]
        is_held = self._server.holds(lease_id)
        if is_held:
            self._server.count_sent(self._ask.segments[index].num_tokens)
        return is_held

    def offered(self) -> set[int]:
        return set(self._held)

    def close(self) -> None:
        """The peer has what it wanted, or is gone."""
        for lease_id in self._leases:
            self._server.end(lease_id)
        self._leases.clear()

    async def _arrive(self, index: int) -> bool:
        return await self._server.arrivals.wait(
            self._key(index), wait_s=self._ask.wait_s, grace_s=self._server.join_grace_s
        )

    async def _lease(self, indices: "range | list[int]") -> tuple[SegmentOffer, ...]:
        if not indices:
            return ()
        lease = await self._server.catalogue.lease([self._key(index) for index in indices])
        if lease.lease_id is None:
            return ()
        self._leases.add(lease.lease_id)
        self._server.grant(lease.lease_id)
        offers: list[SegmentOffer] = []
        for index, segment in zip(indices, lease.segments, strict=True):
            # Another length under the same hash: not what is wanted.
            if (
                segment is not None
                and len(segment.token_bytes) == TOKEN_DTYPE.itemsize * self._ask.segments[index].num_tokens
            ):
                self._held[index] = (lease.lease_id, segment)
                offers.append(_offer(index, segment))
        return tuple(offers)

    def _key(self, index: int) -> SegmentKey:
        return SegmentKey(self._ask.domain_id, self._ask.segments[index].segment_hash)


def _offer(index: int, segment: LeasedSegment) -> SegmentOffer:
    return SegmentOffer(
        index=index,
        token_bytes=segment.token_bytes,
        origin=segment.origin,
        stored_position=segment.stored_position,
        pages=tuple(int(page) for page in segment.pages),
    )
