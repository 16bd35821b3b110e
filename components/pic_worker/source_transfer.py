"""What one request wants from one source: asked in one question, copied in one transfer, each segment by itself."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from nebula_protocol.data_plane import AskSegments, SegmentOffer
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.messages import WantedSegment
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason
from pic_worker.catalogue import IncomingSegment, Reserved, Unreserved
from pic_worker.core.arena_ids import Page
from pic_worker.core.store_entry import StoredSegment
from pic_worker.core.transfer_limits import MAX_WAIT_S
from pic_worker.core.transfer_speed import TransferSpeed
from pic_worker.errors import CatalogueGoneError, PeerGoneError, PeerRefusedError
from pic_worker.orderly_catalogue import OrderlyCatalogue
from pic_worker.ports import Clock, TransferMeter
from pic_worker.segment_arrivals import SegmentArrivals
from pic_worker.segment_flight import Flight
from pic_worker.transport import DataDirectory, Landed, SegmentMove, TransferSession, Transport

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPorts:
    """What every transfer of a worker works with."""

    transport: Transport
    directory: DataDirectory
    catalogue: OrderlyCatalogue
    arrivals: SegmentArrivals
    clock: Clock
    kv_bytes_per_token: int
    meter: TransferMeter


class SourceTransfer:
    """Decides each of its flights exactly once, unless it is cancelled."""

    def __init__(
        self,
        ports: TransferPorts,
        *,
        request_id: RequestId,
        source_id: WorkerId,
        flights: Sequence[Flight],
        deadline_s: float,
        speed: TransferSpeed,
    ) -> None:
        self._ports = ports
        self._request_id = request_id
        self._source_id = source_id
        self._flights = flights
        self._deadline_s = deadline_s
        self._speed = speed
        self._error: PeerGoneError | CatalogueGoneError | None = None

    async def run(self) -> None:
        """However it ends: no room is left reserved, and nothing is written to room that was given back."""
        try:
            async with AsyncExitStack() as opened:
                session = await self._open(opened)
                await self._converse(session)
        except PeerGoneError as error:
            self._ports.directory.forget(self._source_id)
            self._lose(error)
        except (PeerRefusedError, CatalogueGoneError) as error:
            self._lose(error)

    async def _open(self, opened: AsyncExitStack) -> TransferSession:
        """A session; where the source's last known address is outdated, with its present one."""
        directory, transport = self._ports.directory, self._ports.transport
        card = await directory.locate(self._source_id, self._left_s())
        try:
            return await opened.enter_async_context(transport.open(card))
        except PeerGoneError:
            directory.forget(self._source_id)
            fresh = await directory.locate(self._source_id, self._left_s())
            if fresh == card:
                raise
            return await opened.enter_async_context(transport.open(fresh))

    async def _converse(self, session: TransferSession) -> None:
        first = self._flights[0].wanted
        ask = AskSegments(
            request_id=self._request_id,
            domain_id=first.key.domain_id,
            wait_s=min(self._left_s(), MAX_WAIT_S),
            segments=tuple(_wanted(flight) for flight in self._flights),
        )
        async with asyncio.TaskGroup() as tasks:
            try:
                async for offers in session.ask(ask):
                    for index in offers.absent:
                        self._flights[index].fail(FallbackReason.NOT_THERE)
                    if offers.there:
                        tasks.create_task(self._take(session, offers.there))
            except PeerGoneError as error:
                self._error = error
        # Only now: what had landed before the source was lost is used.
        if self._error is not None:
            raise self._error

    async def _take(self, session: TransferSession, offers: Sequence[SegmentOffer]) -> None:
        batch = _Batch(self._ports, self._flights)
        begun_s = self._ports.clock()
        try:
            moves = await batch.reserve(offers)
            if moves:
                await session.take(moves, batch.landed)
                now_s = self._ports.clock()
                self._speed.record(batch.num_landed_bytes, now_s - begun_s, now_s)
                self._ports.meter.observe_copy(now_s - begun_s)
            await batch.settle()
        except (PeerGoneError, CatalogueGoneError) as error:
            self._error = error
        finally:
            batch.give_up()
            await batch.settle()

    def _lose(self, error: Exception) -> None:
        log.warning("segment_source_lost", source_worker_id=self._source_id, error=str(error))
        for flight in self._flights:
            flight.fail(FallbackReason.SOURCE_GONE)

    def _left_s(self) -> float:
        return max(0.0, self._deadline_s - self._ports.clock())


class _Batch:
    """Segments offered together: room for them, and what became of each."""

    def __init__(self, ports: TransferPorts, flights: Sequence[Flight]) -> None:
        self._ports = ports
        self._flights = flights
        self._reserved: dict[int, Reserved] = {}
        """Not landed yet."""
        self._offers: dict[int, SegmentOffer] = {}
        self._finishing: list[asyncio.Task[None]] = []
        self._finding: list[asyncio.Task[None]] = []
        self.num_landed_bytes = 0

    async def reserve(self, offers: Sequence[SegmentOffer]) -> list[SegmentMove]:
        """Which segments to copy: those that are what is wanted, and find room."""
        fitting = [offer for offer in offers if self._has_wanted_tokens(offer)]
        if not fitting:
            return []
        reserved = await self._ports.catalogue.reserve([self._incoming(offer) for offer in fitting])
        moves: list[SegmentMove] = []
        for offer, room in zip(fitting, reserved, strict=True):
            flight = self._flights[offer.index]
            match room:
                case Reserved(pages=pages):
                    self._reserved[offer.index] = room
                    self._offers[offer.index] = offer
                    self._ports.arrivals.begin(flight.wanted.key)
                    source_pages = tuple(Page(page) for page in offer.pages)
                    moves.append(SegmentMove(offer.index, source_pages, pages))
                case Unreserved.NO_ROOM:
                    flight.fail(FallbackReason.NO_ROOM)
                case Unreserved.ALREADY_HERE:
                    self._finding.append(asyncio.create_task(self._find_here(flight)))
        return moves

    def landed(self, index: int, landed: Landed) -> None:
        flight, room = self._flights[index], self._reserved.pop(index)
        match landed:
            case Landed.INTACT:
                num_bytes = flight.wanted.num_tokens * self._ports.kv_bytes_per_token
                self.num_landed_bytes += num_bytes
                self._ports.meter.count_received(num_bytes)
                self._finishing.append(asyncio.create_task(self._confirm(flight, index, room)))
            case Landed.DAMAGED:
                log.error("segment_damaged", request_index=index, num_tokens=flight.wanted.num_tokens)
                self._refuse(flight, room, FallbackReason.DAMAGED)
            case Landed.LEASE_ENDED:
                self._refuse(flight, room, FallbackReason.LATE)

    async def settle(self) -> None:
        """Until all that has landed counts."""
        if tasks := self._finishing + self._finding:
            await asyncio.wait(tasks)

    def give_up(self) -> None:
        """What has not landed never will: its room is free."""
        for finding in self._finding:
            finding.cancel()
        for index, room in self._reserved.items():
            self._ports.arrivals.end(self._flights[index].wanted.key)
            self._ports.catalogue.cancel([room.reservation_id])
        self._reserved.clear()

    # ----

    def _has_wanted_tokens(self, offer: SegmentOffer) -> bool:
        flight = self._flights[offer.index]
        if offer.token_bytes == flight.wanted.token_bytes:
            return True
        flight.fail(FallbackReason.TOKENS_DIFFER)
        return False

    def _incoming(self, offer: SegmentOffer) -> IncomingSegment:
        wanted = self._flights[offer.index].wanted
        stored = StoredSegment(wanted.key, wanted.token_bytes, wanted.num_tokens, offer.origin)
        return IncomingSegment(stored, offer.stored_position)

    async def _confirm(self, flight: Flight, index: int, room: Reserved) -> None:
        key = flight.wanted.key
        try:
            lease_id = await self._ports.catalogue.confirm(room.reservation_id)
        except CatalogueGoneError:
            flight.fail(FallbackReason.NOT_THERE)
        else:
            flight.arrive(flight.wanted.source, self._offers[index].origin, lease_id)
            self._ports.arrivals.stored(key)
        finally:
            self._ports.arrivals.end(key)

    async def _find_here(self, flight: Flight) -> None:
        """It is in the own store, or is going to be: another request computes it."""
        key = flight.wanted.key
        try:
            waiting = asyncio.create_task(self._ports.arrivals.wait(key, wait_s=MAX_WAIT_S, grace_s=0.0))
            lease = await self._ports.catalogue.lease((key,))
            if lease.lease_id is None and await waiting:
                lease = await self._ports.catalogue.lease((key,))
            waiting.cancel()
        except CatalogueGoneError:
            flight.fail(FallbackReason.NOT_THERE)
            return
        found = lease.segments[0]
        if lease.lease_id is None or found is None:
            flight.fail(FallbackReason.NOT_THERE)
        else:
            flight.arrive(Source.LOCAL, found.origin, lease.lease_id)

    def _refuse(self, flight: Flight, room: Reserved, reason: FallbackReason) -> None:
        self._ports.arrivals.end(flight.wanted.key)
        self._ports.catalogue.cancel([room.reservation_id])
        flight.fail(reason)


def _wanted(flight: Flight) -> WantedSegment:
    wanted = flight.wanted
    return WantedSegment(segment_hash=wanted.key.segment_hash, num_tokens=wanted.num_tokens, join=wanted.is_joined)
