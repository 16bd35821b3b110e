"""The store below the device tier: prefix blocks and segments in one capacity, divided by a movable split."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from nebula_protocol.events import SegmentEntry
from nebula_protocol.ids import EngineBlockHash, Origin
from pic_worker.core.pinned_lru import PinnedLru
from pic_worker.core.store_entry import NO_EVICTIONS, Evictions, SegmentKey, StoredSegment

K = TypeVar("K", bound=Hashable)
A = TypeVar("A", bound=Hashable)
B = TypeVar("B", bound=Hashable)


class Kept(Enum):
    """What became of a segment that was offered to the store."""

    NEW = "new"
    """Stored, or put in the place of a copy of lesser origin: worth an event."""
    ALREADY = "already"
    REFUSED = "refused"
    """No room could be made without evicting what is pinned or what belongs to the other class."""


@dataclass(frozen=True, slots=True)
class SegmentPut:
    kept: Kept
    evictions: Evictions = NO_EVICTIONS


@dataclass(frozen=True, slots=True)
class BlocksPut:
    stored: tuple[EngineBlockHash, ...]
    """Those that were not there before and are now, in the order offered."""
    evictions: Evictions = NO_EVICTIONS


class TwoClassStore:
    """Two classes, each in least-recently-used order, in one capacity of KV tokens.

    Capacity is counted in tokens, not bytes: within a worker every token's KV has the same size. `prefix_ratio` of it
    is the prefix class's own room, the rest the segments'. A class may use room that the other leaves unused. When
    room runs short, an entry that fits into its class's own room takes back what the other class borrowed; any other
    entry drives out the oldest of its own class. So a class that is alone behaves as one plain LRU over the whole
    capacity at any split, and at split 1 (0) segments (blocks) live only in room that nobody else wants.

    Entries in use are pinned and stay; when they leave no room, new entries are refused. `set_split` evicts nothing
    by itself.
    """

    def __init__(
        self, *, capacity_tokens: int, prefix_ratio: float, block_size_tokens: int, page_tokens: int = 1
    ) -> None:
        """
        Args:
            page_tokens: segments take whole pages of this size.
        """
        self._capacity_tokens = capacity_tokens
        self._page_tokens = page_tokens
        self._block_size_tokens = block_size_tokens
        self._blocks: _StoreClass[EngineBlockHash] = _StoreClass()
        self._segments: _StoreClass[SegmentKey] = _StoreClass()
        self._stored_segments: dict[SegmentKey, StoredSegment] = {}
        self.set_split(prefix_ratio)

    @property
    def used_tokens(self) -> int:
        return self._blocks.used_tokens + self._segments.used_tokens

    @property
    def prefix_used_tokens(self) -> int:
        return self._blocks.used_tokens

    @property
    def segment_used_tokens(self) -> int:
        return self._segments.used_tokens

    @property
    def pinned_tokens(self) -> int:
        return self.used_tokens - self._blocks.idle_tokens - self._segments.idle_tokens

    def set_split(self, prefix_ratio: float) -> None:
        """Moves the border; entries beyond it go only when the other class wants the room."""
        self._blocks.quota_tokens = round(self._capacity_tokens * prefix_ratio)
        self._segments.quota_tokens = self._capacity_tokens - self._blocks.quota_tokens

    # ---- prefix blocks ----

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    def has_block(self, block_hash: EngineBlockHash) -> bool:
        return block_hash in self._blocks

    def put_blocks(self, block_hashes: Sequence[EngineBlockHash]) -> BlocksPut:
        """Stores distinct blocks, the last one as the most recently used; those already here are only touched.

        Of a run that does not fit as a whole only the last blocks stay.
        """
        blocks, size_tokens = self._blocks, self._block_size_tokens
        new = blocks.touch_or_absent(block_hashes)
        room_blocks = self._room_tokens(blocks, self._segments) // size_tokens
        new = new[len(new) - min(len(new), room_blocks) :]
        if not new:
            return BlocksPut(())
        self._make_room(len(new) * size_tokens, blocks, self._segments)
        blocks.add(new, size_tokens)
        return BlocksPut(tuple(new), self._take_evictions())

    def pin_blocks(self, block_hashes: Sequence[EngineBlockHash]) -> None:
        for block_hash in block_hashes:
            self._blocks.pin(block_hash)

    def unpin_blocks(self, block_hashes: Sequence[EngineBlockHash]) -> None:
        for block_hash in block_hashes:
            self._blocks.unpin(block_hash)

    def remove_block(self, block_hash: EngineBlockHash) -> None:
        """Takes out a block that is here and not pinned."""
        self._blocks.remove(block_hash)

    def blocks(self) -> tuple[EngineBlockHash, ...]:
        return tuple(self._blocks)

    # ---- segments ----

    def has_segment(self, key: SegmentKey) -> bool:
        return key in self._stored_segments

    def find_segment(self, key: SegmentKey) -> StoredSegment | None:
        """The entry with this key, touched; the caller compares its token bytes before use."""
        stored = self._stored_segments.get(key)
        if stored is not None:
            self._segments.touch_or_absent((key,))
        return stored

    def put_segment(self, segment: StoredSegment) -> SegmentPut:
        """Stores a segment. A copy in context takes the place of one computed alone, never the other way."""
        key = segment.key
        present = self._stored_segments.get(key)
        if present is not None:
            self._segments.touch_or_absent((key,))
            if present.token_bytes != segment.token_bytes:
                return SegmentPut(Kept.REFUSED)
            if present.origin is segment.origin or present.origin is Origin.IN_CONTEXT:
                return SegmentPut(Kept.ALREADY)
            self._stored_segments[key] = segment
            return SegmentPut(Kept.NEW)
        size_tokens = -(-segment.num_tokens // self._page_tokens) * self._page_tokens
        if size_tokens > self._room_tokens(self._segments, self._blocks):
            return SegmentPut(Kept.REFUSED)
        self._make_room(size_tokens, self._segments, self._blocks)
        self._segments.add((key,), size_tokens)
        self._stored_segments[key] = segment
        return SegmentPut(Kept.NEW, self._take_evictions())

    def pin_segment(self, key: SegmentKey) -> None:
        self._segments.pin(key)

    def unpin_segment(self, key: SegmentKey) -> None:
        self._segments.unpin(key)

    def is_segment_pinned(self, key: SegmentKey) -> bool:
        return self._segments.is_pinned(key)

    def remove_segment(self, key: SegmentKey) -> None:
        """Takes out a segment that is here and not pinned."""
        self._segments.remove(key)
        del self._stored_segments[key]

    def segments(self) -> tuple[SegmentEntry, ...]:
        return tuple(
            SegmentEntry(key.segment_hash, key.domain_id, stored.num_tokens, stored.origin)
            for key, stored in self._stored_segments.items()
        )

    def clear(self) -> Evictions:
        """Drops all that is not pinned."""
        self._blocks.evicted += self._blocks.evict(self._capacity_tokens)
        self._segments.evicted += self._segments.evict(self._capacity_tokens)
        return self._take_evictions()

    # ---- room ----

    def _room_tokens(self, own: "_StoreClass[A]", other: "_StoreClass[B]") -> int:
        """How much more of the class `own` can be stored at most, by evicting what may be evicted for it."""
        free_tokens = self._capacity_tokens - own.used_tokens - other.used_tokens
        return free_tokens + own.idle_tokens + min(other.idle_tokens, other.borrowed_tokens)

    def _make_room(self, wanted_tokens: int, own: "_StoreClass[A]", other: "_StoreClass[B]") -> None:
        """Evicts until `wanted_tokens`, at most `_room_tokens`, are free."""
        self._evict(own, own.used_tokens + wanted_tokens - own.quota_tokens, wanted_tokens)
        self._evict(other, other.borrowed_tokens, wanted_tokens)
        self._evict(own, own.idle_tokens, wanted_tokens)

    def _evict(self, store_class: "_StoreClass[A]", at_most_tokens: int, wanted_tokens: int) -> None:
        lacking_tokens = self.used_tokens + wanted_tokens - self._capacity_tokens
        if lacking_tokens > 0:
            store_class.evicted += store_class.evict(min(lacking_tokens, at_most_tokens))

    def _take_evictions(self) -> Evictions:
        blocks, segments = self._blocks.take_evicted(), self._segments.take_evicted()
        for key in segments:
            del self._stored_segments[key]
        return Evictions(blocks, segments) if blocks or segments else NO_EVICTIONS


class _StoreClass(PinnedLru[K]):
    """One class's entries, its own room, and what was evicted since the last look."""

    def __init__(self) -> None:
        super().__init__()
        self.quota_tokens = 0
        self.evicted: list[K] = []

    @property
    def borrowed_tokens(self) -> int:
        """Room of the other class that this one uses."""
        return max(0, self.used_tokens - self.quota_tokens)

    def take_evicted(self) -> tuple[K, ...]:
        evicted = tuple(self.evicted)
        self.evicted.clear()
        return evicted
