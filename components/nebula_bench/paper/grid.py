"""The cells of the main table, fixed so that nobody can tune them."""

from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from nebula_bench.cluster.cell import CellSettings, for_model, on_system
from nebula_bench.cluster.settings import ClusterSettings, LoadSettings
from nebula_bench.policies.catalogue import BASELINES

MODELS = ("Llama-3.1-8B", "Qwen3-14B", "Qwen3-32B", "Qwen3-30B-A3B")
WORKLOADS = ("ragpulse", "quac_recon", "chatdev", "tau_retail")
LOADS = (0.80, 0.95)
"""Busy shares of the reference policy that set the rates."""
SEEDS = (1, 2, 3)

OURS = "nebula"
BOUND = "oracle"
FARTHER_BOUND = "omniscient"
REFERENCE = "dynamo_kv_pic"
"""PIC workers behind Dynamo's KV cost: the rates are those at which these are as busy as a load says."""

MAIN_POLICIES = (OURS, BOUND, FARTHER_BOUND, *BASELINES)


class GridCell(NamedTuple):
    workload: str
    model: str


class Scope(BaseModel):
    """How much of the grid is run, and where the traces are."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    data: Path
    """Folder of the traces."""
    models: tuple[str, ...] = MODELS
    """Columns of the grid."""
    workloads: tuple[str, ...] = WORKLOADS
    """Rows of the grid."""
    seeds: tuple[int, ...] = SEEDS
    """Of arrival times and noise; the table shows means over them."""
    limit: int | None = None
    """Only the first requests of each trace: for a quick look, not for the table."""
    system: str | None = None
    """GPU of every cell's prefill-time table; None: each model's own."""
    closed_loop: bool = False
    """A session's next request waits for the answer to the one before; otherwise all are sent at their times."""
    cluster: ClusterSettings = ClusterSettings()
    """What every cell has in common."""

    def cells(self) -> list[GridCell]:
        return [GridCell(workload, model) for model in self.models for workload in self.workloads]

    def job(self, cell: GridCell, policy: str, rate_per_s: float, seed: int) -> "CellJob":
        """
        Raises:
            CellError: no such model.
        """
        cluster = for_model(self.cluster, cell.model)
        if self.system is not None:
            cluster = on_system(cluster, self.system)
        settings = CellSettings(
            workload=cell.workload,
            policy=policy,
            load=LoadSettings(rate_per_s=rate_per_s, seed=seed, closed_loop=self.closed_loop),
            limit=self.limit,
            cluster=cluster,
        )
        return CellJob(data=self.data, cell=settings)


class CellJob(BaseModel):
    """One run."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    data: Path
    """Folder of the traces."""
    cell: CellSettings
    """What to run."""


class RateJob(BaseModel):
    """The search for the rate of one cell at one load."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    data: Path
    """Folder of the traces."""
    cell: CellSettings
    """The reference policy, at the rate with which to begin."""
    load: float
    """How busy its workers are to be."""
