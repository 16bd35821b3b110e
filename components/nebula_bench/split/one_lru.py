"""A store without classes: prefix blocks and segments in one least-recently-used order."""

from collections.abc import Sequence

from nebula_protocol.ids import EngineBlockHash
from pic_worker.core.pinned_lru import PinnedLru
from pic_worker.core.store import BlocksPut, Kept, SegmentPut
from pic_worker.core.store_entry import NO_EVICTIONS, Evictions, SegmentKey, StoredSegment


class OneLruStore:
    """A `Store`: what a split has to be better than."""

    def __init__(self, *, capacity_tokens: int, block_size_tokens: int) -> None:
        self._capacity_tokens = capacity_tokens
        self._block_size_tokens = block_size_tokens
        self._entries: PinnedLru[EngineBlockHash | SegmentKey] = PinnedLru()
        self._segments: dict[SegmentKey, StoredSegment] = {}

    def set_split(self, prefix_ratio: float) -> None:
        """There is none."""

    def has_block(self, block_hash: EngineBlockHash) -> bool:
        return block_hash in self._entries

    def put_blocks(self, block_hashes: Sequence[EngineBlockHash]) -> BlocksPut:
        size_tokens = self._block_size_tokens
        new = [block for block in self._entries.touch_or_absent(block_hashes) if not isinstance(block, tuple)]
        new = new[len(new) - min(len(new), self._room_tokens() // size_tokens) :]
        if not new:
            return BlocksPut(())
        evictions = self._make_room(len(new) * size_tokens)
        self._entries.add(new, size_tokens)
        return BlocksPut(tuple(new), evictions)

    def pin_blocks(self, block_hashes: Sequence[EngineBlockHash]) -> None:
        for block_hash in block_hashes:
            self._entries.pin(block_hash)

    def unpin_blocks(self, block_hashes: Sequence[EngineBlockHash]) -> None:
        for block_hash in block_hashes:
            self._entries.unpin(block_hash)

    def has_segment(self, key: SegmentKey) -> bool:
        return key in self._segments

    def find_segment(self, key: SegmentKey) -> StoredSegment | None:
        stored = self._segments.get(key)
        if stored is not None:
            self._entries.touch_or_absent((key,))
        return stored

    def put_segment(self, segment: StoredSegment) -> SegmentPut:
        if self.find_segment(segment.key) is not None:
            return SegmentPut(Kept.ALREADY)
        if segment.num_tokens > self._room_tokens():
            return SegmentPut(Kept.REFUSED)
        evictions = self._make_room(segment.num_tokens)
        self._entries.add((segment.key,), segment.num_tokens)
        self._segments[segment.key] = segment
        return SegmentPut(Kept.NEW, evictions)

    def pin_segment(self, key: SegmentKey) -> None:
        self._entries.pin(key)

    def unpin_segment(self, key: SegmentKey) -> None:
        self._entries.unpin(key)

    def _room_tokens(self) -> int:
        return self._capacity_tokens - self._entries.used_tokens + self._entries.idle_tokens

    def _make_room(self, wanted_tokens: int) -> Evictions:
        lacking_tokens = self._entries.used_tokens + wanted_tokens - self._capacity_tokens
        if lacking_tokens <= 0:
            return NO_EVICTIONS
        evicted = self._entries.evict(lacking_tokens)
        segments = tuple(key for key in evicted if isinstance(key, tuple))
        for key in segments:
            del self._segments[key]
        return Evictions(tuple(key for key in evicted if not isinstance(key, tuple)), segments)
