"""A store without an engine: fixed segments to give away, room for those that come."""

import itertools
from collections.abc import Sequence

from nebula_protocol.hashing import hash_segment
from nebula_protocol.ids import DomainId, Origin
from nebula_protocol.tokens import as_token_array, token_bytes
from pic_worker.catalogue import IncomingSegment, Lease, LeasedSegment, ReservationId, Reserved, Unreserved
from pic_worker.core.arena_ids import Page
from pic_worker.core.lease_table import LeaseId
from pic_worker.core.page_pool import PagePool
from pic_worker.core.store_entry import SegmentKey

BENCH_DOMAIN = DomainId("0" * 16)


class PageStore:
    """`Catalogue` of a benchmark: nothing is evicted, and nobody else uses it."""

    def __init__(self, num_pages: int, page_tokens: int) -> None:
        self._pool = PagePool(num_pages)
        self._page_tokens = page_tokens
        self._segments: dict[SegmentKey, LeasedSegment] = {}
        self._reserved: dict[ReservationId, LeasedSegment] = {}
        self._numbers = itertools.count()

    def put(self, key: SegmentKey, tokens: bytes, num_tokens: int) -> LeasedSegment:
        pages = self._pool.take(-(-num_tokens // self._page_tokens))
        segment = LeasedSegment(key, tokens, Origin.ALONE, 0, pages)
        self._segments[key] = segment
        return segment

    async def lease(self, keys: Sequence[SegmentKey]) -> Lease:
        segments = tuple(self._segments.get(key) for key in keys)
        return Lease(LeaseId(next(self._numbers)) if any(segments) else None, segments)

    async def release(self, lease_id: LeaseId) -> None:
        """Nothing is ever evicted here, so nothing is pinned."""

    async def reserve(self, segments: Sequence[IncomingSegment]) -> tuple[Reserved | Unreserved, ...]:
        return tuple(self._reserve(segment) for segment in segments)

    async def confirm(self, reservation_id: ReservationId) -> LeaseId:
        segment = self._reserved.pop(reservation_id)
        self._segments[segment.key] = segment
        return LeaseId(next(self._numbers))

    async def cancel(self, reservation_ids: Sequence[ReservationId]) -> None:
        for reservation_id in reservation_ids:
            self._pool.give_back(self._reserved.pop(reservation_id).pages)

    async def drop(self, keys: Sequence[SegmentKey]) -> None:
        for key in keys:
            if (segment := self._segments.pop(key, None)) is not None:
                self._pool.give_back(segment.pages)

    def _reserve(self, incoming: IncomingSegment) -> Reserved | Unreserved:
        stored = incoming.stored
        num_pages = -(-stored.num_tokens // self._page_tokens)
        if num_pages > self._pool.num_free:
            return Unreserved.NO_ROOM
        pages: tuple[Page, ...] = self._pool.take(num_pages)
        reservation_id = ReservationId(next(self._numbers))
        self._reserved[reservation_id] = LeasedSegment(
            stored.key, stored.token_bytes, stored.origin, incoming.stored_position, pages
        )
        return Reserved(reservation_id, pages)


def segment_tokens(index: int, num_tokens: int) -> tuple[SegmentKey, bytes]:
    """Tokens of the benchmark's segment `index`, the same in both processes, and its key."""
    tokens = as_token_array(list(range(index * num_tokens, (index + 1) * num_tokens)))
    return SegmentKey(BENCH_DOMAIN, hash_segment(tokens)), token_bytes(tokens)
