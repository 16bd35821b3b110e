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


class HelperCost(msgspec.Struct, frozen=True, gc=False):
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


@dataclass(frozen=True, slots=True)
class Spreads:
    """What it costs to give away the first 1, 2, ... all of the missing segments, longest first. Shapes [S]."""

    done_s: list[float]
    """When the last helper is done and its link free."""
    cost_to_others_s: list[float]
    positions: list[int]
    """Which helper each segment goes to, the same in all ways."""


def longest_first(missing: Sequence[MissingSegment]) -> list[MissingSegment]:
    return sorted(missing, key=lambda segment: (-segment.size, segment.index))


def share_out(given: Sequence[MissingSegment], positions: Sequence[int], helpers: Sequence[HelperCost]) -> list[Share]:
    """The shares of a spread, in the order of `helpers`; those without segments too."""
    shares = [Share(helper, []) for helper in helpers]
    for segment, position in zip(given, positions, strict=False):
        shares[position].add(segment)
    return shares


def spread(ordered: Sequence[MissingSegment], helpers: Sequence[HelperCost]) -> Spreads:
    """All ways of giving away the longest segments, each to the helper that is done first. O(S log H).

    Keeps the sums of `Share` in local lists: this runs for nearly every prompt, over all of its missing segments.
    """
    tokens = [0] * len(helpers)
    pairs = [0.0] * len(helpers)
    heap = [(helper.begin_s, position) for position, helper in enumerate(helpers)]
    heapify(heap)
    done: list[float] = []
    costs: list[float] = []
    positions: list[int] = []
    done_s = cost_s = 0.0
    for segment in ordered:
        before_s, position = heap[0]
        helper, size = helpers[position], segment.size
        if not tokens[position]:
            cost_s += helper.weight * helper.opening_s
            done_s = max(done_s, helper.link_busy_s)
        tokens[position] += size
        pairs[position] += 0.5 * size * size
        compute_s = tokens[position] * helper.per_token_s + pairs[position] * helper.per_pair_s
        finish_s = helper.begin_s + compute_s
        heapreplace(heap, (finish_s, position))
        cost_s += helper.weight * (finish_s - before_s)
        done_s = max(done_s, finish_s)
        done.append(done_s)
        costs.append(cost_s)
        positions.append(position)
    return Spreads(done, costs, positions)
