"""How much of what segments could save is saved, and how far hit ratios are from the ideal."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nebula_bench.cluster.cell import CellResult, read_workload
from nebula_bench.paper.grid import OURS, REFERENCE, CellJob, GridCell, Scope
from nebula_bench.paper.ideal import ideal_hit_ratio
from nebula_bench.paper.jobs import Jobs

MODEL = "Qwen3-14B"
_UNLIMITED_TOKENS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class WorkloadRecovery:
    workload: str
    recovered_share: float
    """With unlimited stores: segment hits over the tokens that prefix caching missed and some earlier request had."""
    ideal_hit_ratio: float
    our_hit_ratio: float
    reference_hit_ratio: float

    @property
    def our_gap_points(self) -> float:
        return (self.ideal_hit_ratio - self.our_hit_ratio) * 100

    @property
    def reference_gap_points(self) -> float:
        return (self.ideal_hit_ratio - self.reference_hit_ratio) * 100


def measure_recovery(
    scope: Scope,
    rates_per_s: Mapping[str, float],
    jobs: Jobs[CellJob, CellResult],
    on_finished: Callable[[object], None],
) -> list[WorkloadRecovery]:
    """At each workload's rate, with the first seed."""
    seed = scope.seeds[0]
    unlimited = _with_unlimited_stores(scope)
    work: list[CellJob] = []
    for workload, rate_per_s in rates_per_s.items():
        cell = GridCell(workload, MODEL)
        work.append(unlimited.job(cell, OURS, rate_per_s, seed))
        work += [scope.job(cell, policy, rate_per_s, seed) for policy in (OURS, REFERENCE)]
    results = iter(jobs.run(work, on_finished))
    return [_recovery(scope, workload, next(results), next(results), next(results)) for workload in rates_per_s]


def _recovery(
    scope: Scope, workload: str, unlimited: CellResult, ours: CellResult, reference: CellResult
) -> WorkloadRecovery:
    hits = unlimited.summary.tokens
    trace = read_workload(scope.data, workload, scope.limit)
    return WorkloadRecovery(
        workload=workload,
        recovered_share=(hits.local_hit + hits.fetched_hit) / max(unlimited.summary.recoverable_tokens, 1),
        ideal_hit_ratio=ideal_hit_ratio(trace, scope.cluster.router.cut.min_segment_tokens),
        our_hit_ratio=ours.summary.hit_ratio or 0.0,
        reference_hit_ratio=reference.summary.hit_ratio or 0.0,
    )


def _with_unlimited_stores(scope: Scope) -> Scope:
    worker = scope.cluster.worker.model_copy(update={"store_capacity_tokens": _UNLIMITED_TOKENS})
    return scope.model_copy(update={"cluster": scope.cluster.model_copy(update={"worker": worker})})
