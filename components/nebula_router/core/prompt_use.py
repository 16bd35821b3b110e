"""One prompt as the capacity split sees it: what it asked for, and who had what of that when it was placed."""

from collections.abc import Set
from dataclasses import dataclass
from typing import NamedTuple, Self

from nebula_protocol.hashing import accumulate_prefix, prefix_keys, salt_of
from nebula_protocol.ids import DomainId, PrefixKey, SegmentHash
from nebula_protocol.layout import PromptLayout
from nebula_protocol.plan import Source
from nebula_protocol.receipt import Receipt

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
        receipt: Receipt,
        *,
        domain_id: DomainId,
        best_prefix_tokens: int,
        unknown_segments: Set[int],
    ) -> Self:
        """
        Args:
            domain_id: of the request, with its tenant.
            best_prefix_tokens: the longest prefix that one worker had when the prompt was placed.
            unknown_segments: indices of those that nobody had then.
        """
        block_size_tokens = layout.block_size_tokens
        # As in the index: a tenant's blocks differ by their hashes, not by their domain.
        worker_domain_id, _, _ = domain_id.partition("/")
        keys = prefix_keys(accumulate_prefix(layout.block_hashes), salt_of(worker_domain_id))
        barred = _barred_segments(receipt)
        return cls(
            num_tokens=layout.num_tokens,
            chunk_tokens=CHUNK_BLOCKS * block_size_tokens,
            chunks=tuple(keys[CHUNK_BLOCKS - 1 :: CHUNK_BLOCKS].tolist()),
            num_held_chunks=best_prefix_tokens // (CHUNK_BLOCKS * block_size_tokens),
            prefix_hit_tokens=receipt.prefix_hit_tokens,
            segments=tuple(
                [
                    SegmentUse(
                        SegmentKey(domain_id, segment.segment_hash),
                        segment.start,
                        segment.end,
                        is_held=index not in unknown_segments,
                        is_barred=index not in unknown_segments and index in barred,
                    )
                    for index, segment in enumerate(layout.segments)
                ]
            ),
        )

    @property
    def num_hit_chunks(self) -> int:
        return self.prefix_hit_tokens // self.chunk_tokens


def _barred_segments(receipt: Receipt) -> frozenset[int]:
    """Those that were to be computed whatever copies there were, and that no prefix hit covered."""
    return frozenset(
        [
            index
            for index, outcome in enumerate(receipt.segments)
            if outcome.planned is Source.COMPUTE and outcome.prefix_tokens < outcome.end - outcome.start
        ]
    )
