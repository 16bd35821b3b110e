"""What the processes of a table do: run a cell, or search for its rate."""

from functools import cache
from pathlib import Path

from nebula_bench.cluster.cell import CellResult, CellSettings, read_workload, run_cell
from nebula_bench.cluster.settings import LoadSettings
from nebula_bench.paper.grid import CellJob, RateJob
from nebula_bench.paper.rates import find_rate
from nebula_bench.workload import TraceRequest


def compute_cell(job: CellJob) -> CellResult:
    """
    Raises:
        BenchError: no such policy or trace.
    """
    return run_cell(job.cell, _trace(job.data, job.cell.workload, job.cell.limit))


def compute_rate(job: RateJob) -> float:
    """
    Raises:
        BenchError: no such rate, policy or trace.
    """
    trace = _trace(job.data, job.cell.workload, job.cell.limit)

    def busy_at(rate_per_s: float) -> float:
        return run_cell(_at_rate(job.cell, rate_per_s), trace).summary.busy_ratio

    return find_rate(busy_at, job.load, job.cell.load.rate_per_s)


def _at_rate(cell: CellSettings, rate_per_s: float) -> CellSettings:
    load = LoadSettings.model_validate({**cell.load.model_dump(), "rate_per_s": rate_per_s})
    return cell.model_copy(update={"load": load})


@cache
def _trace(data: Path, workload: str, limit: int | None) -> tuple[TraceRequest, ...]:
    return read_workload(data, workload, limit)
