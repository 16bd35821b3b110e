"""The tokens that one request still has to compute, and what it has put into steps so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nebula_protocol.cost import attention_pairs
from nebula_protocol.receipt import StepWork


class Run(NamedTuple):
    """Tokens at positions [start, end), each attending to everything before it."""

    start: int
    end: int


class Taken(NamedTuple):
    num_tokens: int
    attention_pairs: float


NO_WORK: Final = Taken(0, 0.0)


class ComputeRuns:
    """Runs of tokens, computed from the first to the last, in pieces of any size."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = tuple(runs)
        self._at = 0
        self._next = self._runs[0].start if self._runs else 0
        self.left_tokens = sum(run.end - run.start for run in self._runs)

    @property
    def num_finished(self) -> int:
        """Leading runs that are computed in full."""
        return self._at

    @property
    def frontier(self) -> int | None:
        """Position of the next token to compute; None when all are."""
        return self._next if self._at < len(self._runs) else None

    def take(self, budget_tokens: int) -> Taken:
        """Computes up to `budget_tokens` more."""
        pairs = 0.0
        left = budget_tokens
        while left and self._at < len(self._runs):
            run = self._runs[self._at]
            num_tokens = min(left, run.end - self._next)
            pairs += attention_pairs(num_tokens, self._next)
            left -= num_tokens
            self._next += num_tokens
            if self._next == run.end:
                self._at += 1
                if self._at < len(self._runs):
                    self._next = self._runs[self._at].start
        num_taken = budget_tokens - left
        self.left_tokens -= num_taken
        return Taken(num_taken, pairs)


@dataclass(slots=True)
class StepLedger:
    """What a request's steps amounted to."""

    started_at_s: float | None = None
    """When its first step began."""
    num_steps: int = 0
    computed_tokens: int = 0
    attention_pairs: float = 0.0
    step_tokens: int = 0
    step_pairs: float = 0.0
    step_s: float = 0.0

    def step_work(self) -> StepWork:
        return StepWork(
            computed_tokens=self.computed_tokens,
            attention_pairs=self.attention_pairs,
            num_steps=self.num_steps,
            step_tokens=self.step_tokens,
            step_pairs=self.step_pairs,
            step_s=self.step_s,
        )


@dataclass(slots=True)
class ComputeWork:
    runs: ComputeRuns
    load_s: float = 0.0
    """Not yet charged to a step."""
    probe: Taken = NO_WORK
    """Not yet charged to a step. It goes beside the step's budget of tokens, as a forward of its own would."""
    ledger: StepLedger = field(default_factory=StepLedger)


def runs_between(start: int, end: int, loaded: Sequence[Run]) -> list[Run]:
    """The tokens of [start, end) that are in none of `loaded`, which are ascending, disjoint and inside."""
    runs: list[Run] = []
    for gap in loaded:
        if start < gap.start:
            runs.append(Run(start, gap.start))
        start = gap.end
    if start < end:
        runs.append(Run(start, end))
    return runs
