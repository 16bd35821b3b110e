"""The time that reuse would save at every split of the store, learned from requests."""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, exp, floor, sqrt

NUM_STEPS = 128
"""Splits that are told apart: prefix shares 0/128 to 128/128."""

NEVER = NUM_STEPS + 1
"""A step beyond the last: no split gives so much room."""

_MAX_WEIGHT = 1e6


@dataclass(frozen=True, slots=True)
class BestSplits:
    """Neighbouring steps that are as good as the best one."""

    first: int
    last: int
    gain_ratio: float
    """What the best step would save more than the present split, as a share of all prefill time."""
    error_ratio: float
    """Standard error of what lies between the present split and the nearest of these steps."""


class RequestCurve:
    """What one request adds: tokens have a value at each step, and here is where it changes."""

    def __init__(self, prefill_s: float) -> None:
        """
        Args:
            prefill_s: its prefill time when nothing is reused.
        """
        self.prefill_s = prefill_s
        self.changes: defaultdict[int, float] = defaultdict(float)

    def add_prefix(self, from_step: int, saved_s: float) -> None:
        """Tokens that are a prefix hit at `from_step` and above."""
        self.changes[from_step] += saved_s

    def add_segment(self, until_step: int, saved_s: float) -> None:
        """Tokens that are a segment hit below `until_step`."""
        if until_step:
            self.changes[0] += saved_s
            self.changes[until_step] -= saved_s


class SplitCurve:
    """Saved time by prefix share, of requests that fade with age.

    Tokens have a value at each step: what a prefix hit saves from the step on at which the prefix class has room enough
    for their blocks, and below that what a segment hit saves up to the step at which the segments have room enough.
    These are a rise and a fall, so the curve is kept as its changes from step to step.
    """

    def __init__(self, *, horizon_requests: float) -> None:
        self._growth = exp(1.0 / horizon_requests)
        # Instead of fading all that was, each request weighs more than the one before.
        self._weight = 1.0
        self._changes = [0.0] * (NEVER + 1)
        self._squares = [0.0] * (NEVER + 1)
        """Of single requests' changes: the variance of their sum."""
        self._total_s = 0.0

    def add(self, request: RequestCurve) -> None:
        self._weight *= self._growth
        if self._weight > _MAX_WEIGHT:
            self._changes = [change / self._weight for change in self._changes]
            self._squares = [square / self._weight**2 for square in self._squares]
            self._total_s /= self._weight
            self._weight = 1.0
        self._total_s += request.prefill_s * self._weight
        for step, saved_s in request.changes.items():
            change = saved_s * self._weight
            self._changes[step] += change
            self._squares[step] += change * change

    def saved_ratios(self) -> list[float]:
        """By step, `NUM_STEPS + 1` of them: the share of all prefill time that reuse would save."""
        total_s = self._total_s or 1.0
        return [saved_s / total_s for saved_s in accumulate(self._changes[:NEVER])]

    def best_splits(self, prefix_ratio: float, *, tolerance: float) -> BestSplits:
        """The best step with those around it that save at most `tolerance` (of all prefill time) less."""
        ratios = self.saved_ratios()
        most = max(ratios)
        best = ratios.index(most)
        worse = [step for step, ratio in enumerate(ratios) if ratio < most - tolerance]
        place = bisect_left(worse, best)
        first = worse[place - 1] + 1 if place else 0
        last = worse[place] - 1 if place < len(worse) else NUM_STEPS
        present = prefix_ratio * NUM_STEPS
        return BestSplits(
            first=first,
            last=last,
            gain_ratio=most - _between(ratios, present),
            error_ratio=self._error_ratio(present, min(max(present, first), last)),
        )

    def _error_ratio(self, one_step: float, other_step: float) -> float:
        """Standard error of the difference between two steps, if requests are independent of each other."""
        low, high = sorted((round(one_step), round(other_step)))
        return sqrt(sum(self._squares[low + 1 : high + 1])) / (self._total_s or 1.0)


def step_from(room_tokens: float, store_tokens: float) -> int:
    """First step at which the prefix class has at least this much of the store; `NEVER` where none does."""
    if room_tokens > store_tokens:
        return NEVER
    return max(0, ceil(room_tokens * NUM_STEPS / store_tokens))


def step_until(room_tokens: float, store_tokens: float) -> int:
    """First step at which the segments have less than this much of the store left; 0 where they never have it."""
    if room_tokens > store_tokens:
        return 0
    return floor((store_tokens - room_tokens) * NUM_STEPS / store_tokens) + 1


def _between(ratios: list[float], step: float) -> float:
    below = min(int(step), NUM_STEPS - 1)
    return ratios[below] + (ratios[below + 1] - ratios[below]) * (step - below)
