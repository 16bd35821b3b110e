"""One prompt as the capacity split sees it: what it asked for, and who had what of that when it was placed."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from nebula_protocol.hashing import HashArray
from nebula_protocol.ids import DomainId, PrefixKey, SegmentHash
from nebula_protocol.layout import PromptLayout
from nebula_router.core.key_map import BoolArray

CHUNK_BLOCKS = 8
"""Blocks of a chain that are followed together, by the key of the last: enough to tell how long a hit would be."""


class SegmentKey(NamedTuple):
    domain_id: DomainId
    segment_hash: SegmentHash


class SegmentUse(NamedTuple):
    key: SegmentKey
    start: int
    end: int
    is_held: bool
    """Some worker had it, or was about to."""
    is_barred: bool = False
    """It was computed although it was held, since bringing it was not worth it."""


@dataclass(frozen=True, slots=True)
class PromptUse:
    num_tokens: int
    chunk_tokens: int
    chunks: tuple[PrefixKey, ...]
    """Keys of the last blocks of whole chunks, in order."""
    num_held_chunks: int
    """Leading ones that some worker had, or was about to."""
    prefix_hit_tokens: int
    """At the worker that served it."""
    segments: tuple[SegmentUse, ...]
    """Disjoint and ascending."""

    @classmethod
    def of(
        cls,
        layout: PromptLayout,
        domain_id: DomainId,
        *,
        block_keys: HashArray,
        num_held_blocks: int,
        prefix_hit_tokens: int,
        segment_held: BoolArray,
        segment_barred: BoolArray,
    ) -> Self:
        held, barred = segment_held.tolist(), segment_barred.tolist()
        return cls(
            num_tokens=layout.num_tokens,
            chunk_tokens=CHUNK_BLOCKS * layout.block_size_tokens,
            chunks=tuple(block_keys[CHUNK_BLOCKS - 1 :: CHUNK_BLOCKS].tolist()),
            num_held_chunks=num_held_blocks // CHUNK_BLOCKS,
            prefix_hit_tokens=prefix_hit_tokens,
            segments=tuple(
                [
                    SegmentUse(SegmentKey(domain_id, one.segment_hash), one.start, one.end, is_held, is_barred)
                    for one, is_held, is_barred in zip(layout.segments, held, barred, strict=True)
                ]
            ),
        )

    @property
    def num_hit_chunks(self) -> int:
        return self.prefix_hit_tokens // self.chunk_tokens
