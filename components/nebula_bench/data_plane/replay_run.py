"""What one replay showed of a router's accounting, live or in virtual time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nebula_bench.cluster.repeated import ComputedAgain
from nebula_bench.data_plane.replay_settings import ReplayScene
from nebula_bench.replay.summary import Quantiles, TokenCounts
from nebula_bench.serving.graph_replay import GraphReplay
from nebula_protocol.receipt import Receipt
from nebula_router.settings import Accounting

_MS_PER_S = 1e3


@dataclass(frozen=True, slots=True)
class Phases:
    """Mean milliseconds of a request's time to first token; they add up to its mean."""

    queue: float
    wait: float
    """For segments of other workers."""
    compute: float
    outside: float
    """The prefill worker: router, messages, and live the frontend and the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingRun:
    """Times are simulated ones."""

    ttft_ms: Quantiles
    tokens: TokenCounts
    computed_again: ComputedAgain
    phases_ms: Phases
    num_errors: int

    @property
    def hit_ratio(self) -> float:
        return self.tokens.hit_ratio or 0.0

    @property
    def invalid_ratio(self) -> float:
        """Tokens that were planned as hits and were not there, as a share of the prompts'."""
        return self._share(self.tokens.invalid_hit)

    @property
    def repeated_ratio(self) -> float:
        """Tokens that were computed although there was a copy that the router did not know, as a share."""
        return self._share(self.computed_again.unknowingly)

    @property
    def on_purpose_ratio(self) -> float:
        return self._share(self.computed_again.on_purpose)

    def _share(self, num_tokens: float) -> float:
        return num_tokens / self.tokens.prompt if self.tokens.prompt else 0.0


@dataclass(frozen=True, slots=True)
class ReplayedTwice:
    """The same requests, arrivals and settings."""

    accounting: Accounting
    live: AccountingRun
    graph: GraphReplay
    """The live one, with its lags."""
    virtual: AccountingRun


@dataclass(frozen=True, slots=True)
class Compared:
    scene: ReplayScene
    merged: ReplayedTwice
    other: ReplayedTwice


@dataclass(frozen=True, slots=True)
class AccountingReplays:
    invalid: Compared
    repeated: Compared

    @property
    def runs(self) -> tuple[ReplayedTwice, ...]:
        return (self.invalid.merged, self.invalid.other, self.repeated.merged, self.repeated.other)


def mean_phases_ms(timed: Iterable[tuple[Receipt, float]], time_scale: float) -> Phases:
    """
    Args:
        timed: receipts, and the real seconds to the first token.
    """
    rows = [_phases_s(receipt, ttft_s) for receipt, ttft_s in timed]
    queue, wait, compute, outside = (
        (_mean(column) * _MS_PER_S / time_scale for column in zip(*rows, strict=True))
        if (rows)
        else (0.0, 0.0, 0.0, 0.0)
    )
    return Phases(queue, wait, compute, outside)


def _phases_s(receipt: Receipt, ttft_s: float) -> tuple[float, float, float, float]:
    timing = receipt.timing
    return timing.queue_s, timing.wait_s, timing.compute_s, ttft_s - timing.queue_s - timing.wait_s - timing.compute_s


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
