"""Prefix blocks and segments together: what was lost of both, and what room prompts would have needed for it."""

from math import inf
from typing import NamedTuple, assert_never

from nebula_protocol.ids import PrefixKey, RemovalReason
from nebula_router.core.evidence import LostBlocks, LostEntry, LostSegment
from nebula_router.core.prompt_use import CHUNK_BLOCKS, PromptUse, SegmentKey, SegmentUse
from nebula_router.core.reuse_class import ReuseClass
from nebula_router.core.store_room import StoreRoom


class SegmentRoom(NamedTuple):
    use: SegmentUse
    tokens: float
    """Room for segments that makes it a hit; infinite where none does."""
    is_ghost: bool

    @property
    def is_hit(self) -> bool:
        return self.use.is_held and not self.use.is_barred


class StoreClasses:
    def __init__(self, *, max_entries: int) -> None:
        self.room = StoreRoom(0.0, 0.0)
        self.blocks: ReuseClass[PrefixKey] = ReuseClass(max_entries=max_entries)
        self.segments: ReuseClass[SegmentKey] = ReuseClass(max_entries=max_entries)

    def set_room(self, room: StoreRoom) -> None:
        self.room = room
        self.blocks.set_room(store_tokens=room.store_tokens, most_tokens=room.store_tokens + room.device_tokens)
        self.segments.set_room(store_tokens=room.store_tokens, most_tokens=room.store_tokens)

    def knows_blocks(self, prefix_ratio: float) -> bool:
        """Whether blocks were followed down to the depth of the room that is theirs at this split."""
        return self.blocks.wanted_tokens >= self.room.device_tokens + self.room.store_tokens * prefix_ratio

    def knows_segments(self, prefix_ratio: float) -> bool:
        return self.segments.wanted_tokens >= self.room.store_tokens * (1 - prefix_ratio)

    def record_lost(self, lost: LostEntry, prefix_ratio: float) -> None:
        """Entries left the last cache that had them. Only those that room was lacking for become ghosts."""
        match lost:
            case LostBlocks():
                self._record_lost_blocks(lost, prefix_ratio)
            case LostSegment():
                self._record_lost_segment(lost, prefix_ratio)
            case _:
                assert_never(lost)

    def _record_lost_blocks(self, lost: LostBlocks, prefix_ratio: float) -> None:
        last = CHUNK_BLOCKS - 1
        chunks = [key for key, depth in zip(lost.keys, lost.depths, strict=True) if depth % CHUNK_BLOCKS == last]
        chunk_tokens = CHUNK_BLOCKS * lost.block_size_tokens
        if lost.reason is RemovalReason.CAPACITY:
            room_tokens = self.room.prefix_tokens(prefix_ratio, wanted_by_segments=self.segments.wanted_tokens)
            self.blocks.record_lost(chunks, chunk_tokens, room_tokens=room_tokens)
        else:
            self.blocks.ghosts.forget(chunks, chunk_tokens)

    def _record_lost_segment(self, lost: LostSegment, prefix_ratio: float) -> None:
        keys = (SegmentKey(lost.domain_id, lost.segment_hash),)
        if lost.reason is RemovalReason.CAPACITY:
            room_tokens = self.room.segment_tokens(prefix_ratio, wanted_by_prefix=self.blocks.wanted_tokens)
            self.segments.record_lost(keys, lost.num_tokens, room_tokens=room_tokens)
        else:
            self.segments.ghosts.forget(keys, lost.num_tokens)

    def segment_rooms(self, use: PromptUse) -> list[SegmentRoom]:
        """Of each segment, as things stand before `record_use` of the same prompt."""
        ghosts = self.segments.ghosts
        marks = ghosts.marks_of([segment.key for segment in use.segments])
        rooms: list[SegmentRoom] = []
        for segment, mark in zip(use.segments, marks, strict=True):
            room_tokens = inf if segment.is_barred else self.segments.room_of(mark)
            if room_tokens == inf and segment.is_held and not segment.is_barred:
                # Workers knew it longer than this list does.
                room_tokens = 0.0
            rooms.append(SegmentRoom(segment, room_tokens, not segment.is_held and ghosts.is_ghost(mark)))
        return rooms

    def record_use(self, use: PromptUse) -> None:
        """All that the prompt consists of is held now."""
        self.blocks.ghosts.use(dict.fromkeys(use.chunks, use.chunk_tokens))
        # Workers do not touch segments that the prefix covers, nor keep one that is its own prefix.
        self.segments.ghosts.use(
            {
                segment.key: segment.end - segment.start
                for segment in use.segments
                if segment.end > use.prefix_hit_tokens and (segment.start > 0 or segment.is_held)
            }
        )
