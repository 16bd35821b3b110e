"""Nebula's merged view against views that only guess or only listen, at the paper's rates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nebula_bench.cluster.cell import CellResult
from nebula_bench.paper.grid import OURS, CellJob, GridCell, Scope
from nebula_bench.paper.jobs import Jobs

MODEL = "Qwen3-14B"
RATE_PER_S = 40.0
WORKLOADS = ("ragpulse", "tau_retail")
OPTIMISTIC = "nebula_optimistic"
EVENT_DRIVEN = "nebula_event_driven"

# From mild to harsh: the first at which the other view errs by a percent of the prompt tokens is taken.
_STORE_CAPACITIES_TOKENS = (200_000, 100_000, 50_000, 25_000)
_EVENT_DELAYS_S = (0.02, 0.1, 0.5, 2.0, 5.0)
_WORTH_COUNTING = 0.01


@dataclass(frozen=True, slots=True)
class ErrorReduction:
    """How much less of an error the merged view makes, and where that was seen."""

    workload: str
    setting: str
    """Of the cluster, under which the other view errs enough to be compared."""
    other_ratio: float
    """The other view's error, as a share of prompt tokens."""
    our_ratio: float

    @property
    def reduction(self) -> float:
        return 1 - self.our_ratio / self.other_ratio if self.other_ratio else 0.0


def invalid_hit_reductions(
    scope: Scope, jobs: Jobs[CellJob, CellResult], on_finished: Callable[[object], None]
) -> list[ErrorReduction]:
    """Against entries that are made at dispatch and never corrected."""
    scopes = {f"store of {capacity:,} tokens": _with_store(scope, capacity) for capacity in _STORE_CAPACITIES_TOKENS}
    return _reductions(scopes, OPTIMISTIC, _invalid_ratio, jobs, on_finished)


def repeated_reductions(
    scope: Scope, jobs: Jobs[CellJob, CellResult], on_finished: Callable[[object], None]
) -> list[ErrorReduction]:
    """Against a view of events only."""
    scopes = {f"event delay {delay_s * 1000:g} ms": _with_delay(scope, delay_s) for delay_s in _EVENT_DELAYS_S}
    return _reductions(scopes, EVENT_DRIVEN, _repeated_ratio, jobs, on_finished)


def _reductions(
    scopes: dict[str, Scope],
    other: str,
    error_of: Callable[[CellResult], float],
    jobs: Jobs[CellJob, CellResult],
    on_finished: Callable[[object], None],
) -> list[ErrorReduction]:
    first = next(iter(scopes.values()))
    return [
        _first_worth_counting(workload, scopes, other, error_of, jobs, on_finished)
        for workload in WORKLOADS
        if workload in first.workloads
    ]


def _first_worth_counting(
    workload: str,
    scopes: dict[str, Scope],
    other: str,
    error_of: Callable[[CellResult], float],
    jobs: Jobs[CellJob, CellResult],
    on_finished: Callable[[object], None],
) -> ErrorReduction:
    cell = GridCell(workload, MODEL)
    for setting, scope in scopes.items():
        other_ratio = _mean_error(scope, cell, other, error_of, jobs, on_finished)
        # The harshest stands where none is harsh enough.
        if other_ratio >= _WORTH_COUNTING or setting == list(scopes)[-1]:
            our_ratio = _mean_error(scope, cell, OURS, error_of, jobs, on_finished)
            return ErrorReduction(workload, setting, other_ratio, our_ratio)
    raise ValueError("no setting to compare in")


def _mean_error(
    scope: Scope,
    cell: GridCell,
    policy: str,
    error_of: Callable[[CellResult], float],
    jobs: Jobs[CellJob, CellResult],
    on_finished: Callable[[object], None],
) -> float:
    work: Sequence[CellJob] = [scope.job(cell, policy, RATE_PER_S, seed) for seed in scope.seeds]
    errors = [error_of(result) for result in jobs.run(work, on_finished)]
    return sum(errors) / len(errors)


def _invalid_ratio(result: CellResult) -> float:
    return result.summary.tokens.invalid_hit / result.summary.tokens.prompt


def _repeated_ratio(result: CellResult) -> float:
    return result.summary.repeated.repeated / result.summary.tokens.prompt


def _with_store(scope: Scope, capacity_tokens: int) -> Scope:
    worker = scope.cluster.worker.model_copy(update={"store_capacity_tokens": capacity_tokens})
    return scope.model_copy(update={"cluster": scope.cluster.model_copy(update={"worker": worker})})


def _with_delay(scope: Scope, delay_s: float) -> Scope:
    network = scope.cluster.network.model_copy(update={"event_delay_s": delay_s})
    return scope.model_copy(update={"cluster": scope.cluster.model_copy(update={"network": network})})
