"""How the stores' division by the router compares with one order, with halves, and with the best fixed division."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nebula_bench.cluster.cell import CellResult, CellSettings
from nebula_bench.cluster.settings import LoadSettings
from nebula_bench.paper.grid import OURS, CellJob, GridCell, Scope
from nebula_bench.paper.jobs import Jobs

MODEL = "Qwen3-14B"
SYSTEM = "a100_sxm"
"""The slower GPU: at the paper's rates a faster one would idle."""
RATES_PER_S = {"ragpulse": 48.0, "quac_recon": 40.0, "chatdev": 12.0, "tau_retail": 40.0}
CAPACITIES_TOKENS = (50_000, 100_000, 200_000, 400_000)
SMALL_CAPACITIES_TOKENS = {"chatdev": (6_250, 12_500, 25_000)}
"""Where larger stores hold nearly all that is ever used again, dividing matters in smaller ones."""
WINDOWS_REQUESTS = (8, 16, 32, 64)

_FIXED = "nebula_fixed_split"
_ONE_LRU = "nebula_one_lru"
_STATIC_RATIOS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
_HALVES = 0.5
_WARMUP_REQUESTS = 800
# Traces that are hardly longer than the paper's warm-up keep at least this share of their requests.
_MAX_WARMUP_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Figures:
    hit_ratio: float
    ttft_p50_ms: float


@dataclass(frozen=True, slots=True)
class Division:
    """One workload at one capacity."""

    workload: str
    capacity_tokens: int
    ours: Figures
    one_lru: Figures
    static: dict[float, Figures]
    """By the prefix share."""

    @property
    def halves(self) -> Figures:
        return self.static[_HALVES]

    @property
    def best_static_hit_ratio(self) -> float:
        return max(figures.hit_ratio for figures in self.static.values())

    def hit_points_over(self, other: Figures) -> float:
        return (self.ours.hit_ratio - other.hit_ratio) * 100

    def ttft_ratio_to(self, other: Figures) -> float:
        """Negative where ours is faster."""
        return self.ours.ttft_p50_ms / other.ttft_p50_ms - 1


@dataclass(frozen=True, slots=True)
class WindowSpread:
    workload: str
    by_window_ms: dict[int, float]
    default_ms: float

    @property
    def lost_ms(self) -> float:
        """What the default window loses against the best."""
        return self.default_ms - min(self.by_window_ms.values())


def measure_divisions(
    scope: Scope, jobs: Jobs[CellJob, CellResult], on_finished: Callable[[object], None]
) -> list[Division]:
    """Every workload at every capacity, with the first seed."""
    places = [
        (workload, capacity)
        for workload in scope.workloads
        for capacity in (*SMALL_CAPACITIES_TOKENS.get(workload, ()), *CAPACITIES_TOKENS)
    ]
    work: list[CellJob] = []
    for workload, capacity in places:
        work.append(_job(scope, workload, capacity, OURS))
        work.append(_job(scope, workload, capacity, _ONE_LRU))
        work += [_job(scope, workload, capacity, _FIXED, prefix_ratio=ratio) for ratio in _STATIC_RATIOS]
    figures = iter([_figures(result) for result in jobs.run(work, on_finished)])
    return [
        Division(
            workload=workload,
            capacity_tokens=capacity,
            ours=next(figures),
            one_lru=next(figures),
            static={ratio: next(figures) for ratio in _STATIC_RATIOS},
        )
        for workload, capacity in places
    ]


def measure_windows(
    scope: Scope, jobs: Jobs[CellJob, CellResult], on_finished: Callable[[object], None]
) -> list[WindowSpread]:
    """At the default capacity, with the first seed."""
    capacity = scope.cluster.worker.store_capacity_tokens
    default = scope.cluster.router.window_requests
    windows = sorted({*WINDOWS_REQUESTS, default})
    work = [
        _job(scope, workload, capacity, OURS, window_requests=window)
        for workload in scope.workloads
        for window in windows
    ]
    times_ms = iter([_figures(result).ttft_p50_ms for result in jobs.run(work, on_finished)])
    spreads: list[WindowSpread] = []
    for workload in scope.workloads:
        by_window_ms = {window: next(times_ms) for window in windows}
        spreads.append(WindowSpread(workload, by_window_ms, by_window_ms[default]))
    return spreads


def most_telling(divisions: Sequence[Division], workload: str) -> Division:
    """At the capacity where dividing matters most to the workload: where it gains most over one order."""
    own = [division for division in divisions if division.workload == workload]
    return max(own, key=lambda division: division.hit_points_over(division.one_lru))


def _job(
    scope: Scope,
    workload: str,
    capacity_tokens: int,
    policy: str,
    *,
    prefix_ratio: float | None = None,
    window_requests: int | None = None,
) -> CellJob:
    job = scope.job(GridCell(workload, MODEL), policy, RATES_PER_S[workload], scope.seeds[0])
    cluster = job.cell.cluster
    worker = cluster.worker.model_copy(
        update={
            "store_capacity_tokens": capacity_tokens,
            "sim": cluster.worker.sim.model_copy(update={"system": SYSTEM}),
            **({} if prefix_ratio is None else {"prefix_ratio": prefix_ratio}),
        }
    )
    router = cluster.router.model_copy(update={} if window_requests is None else {"window_requests": window_requests})
    cell = job.cell.model_copy(
        update={
            "cluster": cluster.model_copy(update={"worker": worker, "router": router}),
            "load": _with_warmup(job.cell, scope),
        }
    )
    return job.model_copy(update={"cell": cell})


def _with_warmup(cell: CellSettings, scope: Scope) -> LoadSettings:
    warmup = _WARMUP_REQUESTS if scope.limit is None else min(_WARMUP_REQUESTS, int(scope.limit * _MAX_WARMUP_SHARE))
    return cell.load.model_copy(update={"warmup_requests": warmup})


def _figures(result: CellResult) -> Figures:
    return Figures(result.summary.hit_ratio or 0.0, result.summary.ttft_ms.p50 or 0.0)
