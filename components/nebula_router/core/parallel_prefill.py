"""Missing segments spread over helpers that compute them alone while the target waits.

Values made once per segment are msgspec Structs: a frozen dataclass takes ten times as long to make.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

import msgspec


class MissingSegment(msgspec.Struct, frozen=True, gc=False):
    """A segment that the target would have to compute in context."""

    index: int
    size: int
    """Tokens, all of which a helper computes and sends."""
    saved_tokens: float
    """Tokens that the target then does not compute; the first k stay."""
    saved_pairs: float
    saved_s: float
    """Net of loading."""


@dataclass(frozen=True, slots=True)
class HelperCost:
    """What computing alone costs at a helper, and when it can begin; seconds from now."""

    column: int
    begin_s: float
    """Until the first token of a task that is queued now, step floor included."""
    opening_s: float
    """Engine time of a task apart from its tokens."""
    per_token_s: float
    per_pair_s: float
    link_busy_s: float
    weight: float
    """What a second of this engine's time costs others."""


@dataclass(slots=True)
class Share:
    """What one helper is given."""

    helper: HelperCost
    segment_indices: list[int]
    num_tokens: int = 0
    pairs: float = 0.0

    @property
    def compute_s(self) -> float:
        return self.num_tokens * self.helper.per_token_s + self.pairs * self.helper.per_pair_s

    @property
    def finish_s(self) -> float:
        return self.helper.begin_s + self.compute_s

    def add(self, segment: MissingSegment) -> None:
        """A segment alone begins at position 0: n tokens make n * n / 2 pairs."""
        self.segment_indices.append(segment.index)
        self.num_tokens += segment.size
        self.pairs += 0.5 * segment.size * segment.size


class Spread(msgspec.Struct, frozen=True, gc=False):
    """The first so many of the missing segments, longest first, at helpers."""

    num_segments: int
    done_s: float
    """When the last helper is done and its link free."""
    num_tokens: int
    saved_tokens: float
    saved_pairs: float
    saved_s: float
    cost_to_others_s: float


def longest_first(missing: Sequence[MissingSegment]) -> list[MissingSegment]:
    return sorted(missing, key=lambda segment: (-segment.size, segment.index))


def share_out(ordered: Sequence[MissingSegment], helpers: Sequence[HelperCost]) -> list[Share]:
    """Each segment to the helper that is done first (longest processing time first); in order of `helpers`."""
    shares = [Share(helper, []) for helper in helpers]
    heap = [(share.finish_s, position) for position, share in enumerate(shares)]
    heapify(heap)
    for segment in ordered:
        _, position = heap[0]
        shares[position].add(segment)
        heapreplace(heap, (shares[position].finish_s, position))
    return shares


def spreads(ordered: Sequence[MissingSegment], helpers: Sequence[HelperCost]) -> list[Spread]:
    """What it brings to give away the first 1, 2, ... all segments. O(S log H)."""
    shares = [Share(helper, []) for helper in helpers]
    heap = [(share.finish_s, position) for position, share in enumerate(shares)]
    heapify(heap)
    result: list[Spread] = []
    done_s = saved_tokens = saved_pairs = saved_s = cost_s = 0.0
    num_tokens = 0
    for count, segment in enumerate(ordered, start=1):
        finish_s, position = heap[0]
        share = shares[position]
        opening_s = 0.0 if share.segment_indices else share.helper.opening_s
        share.add(segment)
        heapreplace(heap, (share.finish_s, position))
        cost_s += share.helper.weight * (opening_s + share.finish_s - finish_s)
        done_s = max(done_s, share.finish_s, share.helper.link_busy_s)
        num_tokens += segment.size
        saved_tokens += segment.saved_tokens
        saved_pairs += segment.saved_pairs
        saved_s += segment.saved_s
        result.append(Spread(count, done_s, num_tokens, saved_tokens, saved_pairs, saved_s, cost_s))
    return result
