"""A store as the data plane sees it, small and naive: it counts everything that is taken and not given back."""

from collections.abc import Sequence
from dataclasses import dataclass

from nebula_protocol.hashing import hash_segment
from nebula_protocol.ids import DomainId, Origin
from nebula_protocol.tokens import as_token_array, token_bytes
from pic_worker.catalogue import IncomingSegment, Lease, LeasedSegment, ReservationId, Reserved, Unreserved
from pic_worker.core.arena_ids import Page
from pic_worker.core.lease_table import LeaseId
from pic_worker.core.store_entry import SegmentKey

DOMAIN = DomainId("0123456789abcdef")
PAGE_TOKENS = 4


def tokens_of(first: int, num_tokens: int) -> bytes:
    return token_bytes(as_token_array(list(range(first, first + num_tokens))))


def key_of(tokens: bytes, domain_id: DomainId = DOMAIN) -> SegmentKey:
    ids = [int.from_bytes(tokens[at : at + 4], "little") for at in range(0, len(tokens), 4)]
    return SegmentKey(domain_id, hash_segment(as_token_array(ids)))


@dataclass(slots=True)
class _Entry:
    segment: LeasedSegment
    num_pins: int = 0


class FakeStore:
    """`Catalogue`. Evicts nothing by itself: what does not fit finds no room."""

    def __init__(self, num_pages: int) -> None:
        self.free = [Page(number) for number in reversed(range(num_pages))]
        self.entries: dict[SegmentKey, _Entry] = {}
        self.leases: dict[LeaseId, tuple[SegmentKey, ...]] = {}
        self.reservations: dict[ReservationId, LeasedSegment] = {}
        self.num_calls = 0

    # ---- for tests ----

    def put(self, tokens: bytes, *, stored_position: int = 0, domain_id: DomainId = DOMAIN) -> LeasedSegment:
        """An entry that counts; its pages are not next to each other when they need not be."""
        pages = self._take_pages(len(tokens) // 4)
        segment = LeasedSegment(key_of(tokens, domain_id), tokens, Origin.ALONE, stored_position, pages)
        self.entries[segment.key] = _Entry(segment)
        return segment

    def evict(self, key: SegmentKey) -> None:
        entry = self.entries[key]
        assert entry.num_pins == 0
        self.free.extend(self.entries.pop(key).segment.pages)

    @property
    def num_pins(self) -> int:
        return sum(entry.num_pins for entry in self.entries.values())

    @property
    def is_clean(self) -> bool:
        """Nothing is pinned, leased or reserved."""
        return not (self.num_pins or self.leases or self.reservations)

    @property
    def num_used_pages(self) -> int:
        return sum(len(entry.segment.pages) for entry in self.entries.values())

    # ---- the port ----

    async def lease(self, keys: Sequence[SegmentKey]) -> Lease:
        return self._pin(keys)

    async def release(self, lease_id: LeaseId) -> None:
        for key in self.leases.pop(lease_id):
            self.entries[key].num_pins -= 1

    async def reserve(self, segments: Sequence[IncomingSegment]) -> tuple[Reserved | Unreserved, ...]:
        return tuple(self._reserve(segment) for segment in segments)

    async def confirm(self, reservation_id: ReservationId) -> LeaseId:
        segment = self.reservations.pop(reservation_id)
        self.entries[segment.key] = _Entry(segment)
        lease_id = self._pin((segment.key,)).lease_id
        assert lease_id is not None
        return lease_id

    async def cancel(self, reservation_ids: Sequence[ReservationId]) -> None:
        for reservation_id in reservation_ids:
            self.free.extend(self.reservations.pop(reservation_id).pages)

    async def drop(self, keys: Sequence[SegmentKey]) -> None:
        for key in keys:
            if key in self.entries and not self.entries[key].num_pins:
                self.evict(key)

    # ----

    def _pin(self, keys: Sequence[SegmentKey]) -> Lease:
        self.num_calls += 1
        found = [self.entries.get(key) for key in keys]
        segments = tuple(None if entry is None else entry.segment for entry in found)
        present = tuple(key for key, entry in zip(keys, found, strict=True) if entry is not None)
        if not present:
            return Lease(None, segments)
        for key in present:
            self.entries[key].num_pins += 1
        lease_id = LeaseId(self.num_calls)
        self.leases[lease_id] = present
        return Lease(lease_id, segments)

    def _reserve(self, incoming: IncomingSegment) -> Reserved | Unreserved:
        self.num_calls += 1
        stored = incoming.stored
        if stored.key in self.entries or any(one.key == stored.key for one in self.reservations.values()):
            return Unreserved.ALREADY_HERE
        if -(-stored.num_tokens // PAGE_TOKENS) > len(self.free):
            return Unreserved.NO_ROOM
        pages = self._take_pages(stored.num_tokens)
        segment = LeasedSegment(stored.key, stored.token_bytes, stored.origin, incoming.stored_position, pages)
        self.reservations[ReservationId(self.num_calls)] = segment
        return Reserved(ReservationId(self.num_calls), pages)

    def _take_pages(self, num_tokens: int) -> tuple[Page, ...]:
        # Every other one first, so that runs are broken.
        num_pages = -(-num_tokens // PAGE_TOKENS)
        spread = self.free[-1::-2][:num_pages]
        pages = spread + [page for page in reversed(self.free) if page not in spread][: num_pages - len(spread)]
        for page in pages:
            self.free.remove(page)
        return tuple(pages)
