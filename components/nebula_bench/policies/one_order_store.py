"""A store without classes: prefix blocks and segments in one least-recently-used order, inside the real engine."""

import itertools
from collections.abc import Hashable, Sequence
from typing import TypeVar

from nebula_protocol.ids import EngineBlockHash
from pic_worker.core.pinned_lru import PinnedLru
from pic_worker.core.store import BlocksPut, SegmentPut, TwoClassStore
from pic_worker.core.store_entry import SegmentKey, StoredSegment

A = TypeVar("A", bound=Hashable)
B = TypeVar("B", bound=Hashable)


class OneOrderStore(TwoClassStore):
    """What a split has to be better than. Both classes stay where they are; only who gives way is decided otherwise."""

    def __init__(self, *, capacity_tokens: int, block_size_tokens: int) -> None:
        self._used_at: dict[Hashable, int] = {}
        self._uses = itertools.count()
        super().__init__(capacity_tokens=capacity_tokens, prefix_ratio=0.5, block_size_tokens=block_size_tokens)

    def put_blocks(self, block_hashes: Sequence[EngineBlockHash]) -> BlocksPut:
        # Those that are here are used before room is made for the others.
        for block_hash in filter(self.has_block, block_hashes):
            self._use(block_hash)
        put = super().put_blocks(block_hashes)
        for block_hash in put.stored:
            self._use(block_hash)
        self._forget(put.evictions.blocks, put.evictions.segments)
        return put

    def unpin_blocks(self, block_hashes: Sequence[EngineBlockHash]) -> None:
        super().unpin_blocks(block_hashes)
        for block_hash in block_hashes:
            self._use(block_hash)

    def find_segment(self, key: SegmentKey) -> StoredSegment | None:
        stored = super().find_segment(key)
        if stored is not None:
            self._use(key)
        return stored

    def put_segment(self, segment: StoredSegment) -> SegmentPut:
        put = super().put_segment(segment)
        if self.has_segment(segment.key):
            self._use(segment.key)
        self._forget(put.evictions.blocks, put.evictions.segments)
        return put

    def unpin_segment(self, key: SegmentKey) -> None:
        super().unpin_segment(key)
        self._use(key)

    def _room_tokens(self, own: PinnedLru[A], other: PinnedLru[B]) -> int:
        return self._capacity_tokens - self.used_tokens + own.idle_tokens + other.idle_tokens

    def _make_room(self, wanted_tokens: int, own: PinnedLru[A], other: PinnedLru[B]) -> None:
        while self.used_tokens + wanted_tokens > self._capacity_tokens:
            block, segment = self._blocks.oldest(), self._segments.oldest()
            if segment is None or (block is not None and self._used_at[block] < self._used_at[segment]):
                self._blocks.evicted += self._blocks.evict(1)
            else:
                self._segments.evicted += self._segments.evict(1)

    def _use(self, key: Hashable) -> None:
        self._used_at[key] = next(self._uses)

    def _forget(self, *evicted: Sequence[Hashable]) -> None:
        for key in itertools.chain(*evicted):
            self._used_at.pop(key, None)
