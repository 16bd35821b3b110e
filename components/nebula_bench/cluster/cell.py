"""One cell: a workload at a rate, a model, and a policy."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from nebula_bench.cluster.models import find_model
from nebula_bench.cluster.outcome import Outcome
from nebula_bench.cluster.settings import ClusterSettings, LoadSettings
from nebula_bench.cluster.simulation import Record, Simulation
from nebula_bench.cluster.summary import CellSummary, summarize
from nebula_bench.policies.catalogue import find_policy
from nebula_bench.workload import TraceRequest, read_trace


class CellSettings(BaseModel):
    """All that a cell's numbers depend on, apart from the trace's content."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    workload: str
    """Name of a trace, without `.trace.jsonl.gz`."""
    policy: str = "nebula"
    """Who places requests: see `policies/catalogue.py`."""
    load: LoadSettings
    """What is sent."""
    limit: int | None = Field(default=None, ge=1)
    """Only the first requests of the trace."""
    cluster: ClusterSettings = ClusterSettings()
    """To what."""


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    workload: str
    model: str
    policy: str
    rate_per_s: float
    seed: int
    summary: CellSummary


def for_model(cluster: ClusterSettings, name: str) -> ClusterSettings:
    """The cluster with another model in its workers.

    Raises:
        CellError: no such model.
    """
    model = find_model(name)
    return _with_table(cluster, {"model": model.name, "dtype": model.dtype, "system": model.system})


def on_system(cluster: ClusterSettings, system: str) -> ClusterSettings:
    """The cluster on another GPU."""
    return _with_table(cluster, {"system": system})


def _with_table(cluster: ClusterSettings, table: Mapping[str, str]) -> ClusterSettings:
    sim = cluster.worker.sim.model_copy(update=dict(table))
    return cluster.model_copy(update={"worker": cluster.worker.model_copy(update={"sim": sim})})


def read_workload(data: Path, workload: str, limit: int | None) -> tuple[TraceRequest, ...]:
    """
    Raises:
        TraceError: the folder `data` has no such trace.
    """
    return read_trace(data / f"{workload}.trace.jsonl.gz", limit)


def run_record(
    cell: CellSettings, trace: tuple[TraceRequest, ...], on_finished: Callable[[Outcome], None] = lambda _: None
) -> Record:
    """
    Raises:
        CellError: no such policy.
    """
    return Simulation(cell.cluster, cell.load, find_policy(cell.policy)).run(trace, on_finished)


def run_cell(
    cell: CellSettings, trace: tuple[TraceRequest, ...], on_finished: Callable[[Outcome], None] = lambda _: None
) -> CellResult:
    """
    Raises:
        CellError: no such policy.
    """
    return CellResult(
        workload=cell.workload,
        model=cell.cluster.worker.sim.model,
        policy=cell.policy,
        rate_per_s=cell.load.rate_per_s,
        seed=cell.load.seed,
        summary=summarize(run_record(cell, trace, on_finished), cell.load.warmup_requests),
    )
