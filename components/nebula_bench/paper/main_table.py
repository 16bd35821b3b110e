"""Nebula, its baselines and its bounds over the grid, at given loads."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from nebula_bench.cluster.cell import CellResult
from nebula_bench.paper.grid import (
    BOUND,
    MAIN_POLICIES,
    OURS,
    REFERENCE,
    CellJob,
    GridCell,
    RateJob,
    Scope,
)
from nebula_bench.paper.jobs import Jobs
from nebula_bench.policies.catalogue import BASELINES

# Somewhere between the loads of the four models; the search corrects it in two or three runs.
_FIRST_RATE_PER_S = {"ragpulse": 60.0, "quac_recon": 90.0, "chatdev": 110.0, "tau_retail": 60.0}
_DEFAULT_RATE_PER_S = 50.0


class Timing(msgspec.Struct, frozen=True):
    """Means over the seeds."""

    p50_ms: float
    p95_ms: float
    hit_ratio: float
    busy_ratio: float


@dataclass(frozen=True, slots=True)
class TableCell:
    """One cell at one load: every policy's figures."""

    cell: GridCell
    load: float
    rate_per_s: float
    timings: Mapping[str, Timing]

    @property
    def strongest(self) -> str:
        """The baseline with the lowest median TTFT."""
        return min(BASELINES, key=lambda policy: self.timings[policy].p50_ms)

    @property
    def reduction(self) -> float:
        """Of the median TTFT against the strongest baseline."""
        return 1 - self.timings[OURS].p50_ms / self.timings[self.strongest].p50_ms

    @property
    def p95_reduction(self) -> float:
        """Of the 95th percentile, against the baseline that is strongest by the median."""
        return 1 - self.timings[OURS].p95_ms / self.timings[self.strongest].p95_ms

    def captured(self, bound: str = BOUND) -> float:
        """Share of the way from the strongest baseline to a bound."""
        base_ms = self.timings[self.strongest].p50_ms
        return (base_ms - self.timings[OURS].p50_ms) / (base_ms - self.timings[bound].p50_ms)


@dataclass(frozen=True, slots=True)
class MainTable:
    cells: tuple[TableCell, ...]

    def at(self, load: float) -> tuple[TableCell, ...]:
        return tuple(cell for cell in self.cells if cell.load == load)

    def mean_reduction(self, load: float) -> float:
        return _mean([cell.reduction for cell in self.at(load)])

    def mean_p95_reduction(self, load: float) -> float:
        return _mean([cell.p95_reduction for cell in self.at(load)])

    def gap_captured(self, load: float, bound: str = BOUND) -> float:
        """Share of the way from the strongest baselines to the bound, of the mean reductions over the cells.

        Not the mean of each cell's share: where bound and baseline nearly touch, that is noise over noise.
        """
        cells = self.at(load)
        to_bound = [1 - cell.timings[bound].p50_ms / cell.timings[cell.strongest].p50_ms for cell in cells]
        return self.mean_reduction(load) / _mean(to_bound)

    def worst(self) -> TableCell:
        return min(self.cells, key=lambda cell: cell.reduction)


def find_rates(
    scope: Scope, loads: Sequence[float], jobs: Jobs[RateJob, float], on_finished: Callable[[object], None]
) -> dict[tuple[GridCell, float], float]:
    """The rate of each cell at each load, of the first seed."""
    wanted = [(cell, load) for cell in scope.cells() for load in loads]
    searches = [
        RateJob(
            data=scope.data,
            cell=scope.job(
                cell, REFERENCE, _FIRST_RATE_PER_S.get(cell.workload, _DEFAULT_RATE_PER_S), scope.seeds[0]
            ).cell,
            load=load,
        )
        for cell, load in wanted
    ]
    return dict(zip(wanted, jobs.run(searches, on_finished), strict=True))


def run_table(
    scope: Scope,
    rates: Mapping[tuple[GridCell, float], float],
    jobs: Jobs[CellJob, CellResult],
    on_finished: Callable[[object], None],
    policies: Sequence[str] = MAIN_POLICIES,
) -> MainTable:
    """Every policy on every cell and seed."""
    wanted = [(cell, load, policy, seed) for (cell, load) in rates for policy in policies for seed in scope.seeds]
    work = [scope.job(cell, policy, rates[cell, load], seed) for cell, load, policy, seed in wanted]
    results = dict(zip(wanted, jobs.run(work, on_finished), strict=True))
    return MainTable(
        tuple(
            TableCell(
                cell=cell,
                load=load,
                rate_per_s=rate_per_s,
                timings={
                    policy: _timing([results[cell, load, policy, seed] for seed in scope.seeds]) for policy in policies
                },
            )
            for (cell, load), rate_per_s in rates.items()
        )
    )


def _timing(results: Sequence[CellResult]) -> Timing:
    summaries = [result.summary for result in results]
    return Timing(
        p50_ms=_mean([summary.ttft_ms.p50 or 0.0 for summary in summaries]),
        p95_ms=_mean([summary.ttft_ms.p95 or 0.0 for summary in summaries]),
        hit_ratio=_mean([summary.hit_ratio or 0.0 for summary in summaries]),
        busy_ratio=_mean([summary.busy_ratio for summary in summaries]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
