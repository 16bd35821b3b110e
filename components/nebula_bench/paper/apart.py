"""Settings that are not the main table's, each with a table of its own: what changes when one thing does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from nebula_bench.cluster.cell import CellResult
from nebula_bench.paper.grid import BOUND, OURS, REFERENCE, CellJob, GridCell, Scope
from nebula_bench.paper.jobs import Jobs
from nebula_bench.paper.main_table import MainTable, run_table
from nebula_bench.paper.part import Part
from nebula_bench.policies.catalogue import BASELINES
from nebula_protocol.fusion import cacheblend
from pic_worker.settings import LinkSettings

POLICIES = (OURS, BOUND, *BASELINES)
ONE_MODEL = "Qwen3-14B"
"""Where only links, stores or the order of arrivals differ, one model of the four tells it."""
HYBRID_MODEL = "Qwen3.5-35B-A3B"
PAPER_MODELS = ("Llama-3.1-8B", "Qwen3-14B")
PAPER_SYSTEM = "a100_sxm"
PAPER_RATES_PER_S = (("ragpulse", 40.0), ("ragpulse", 48.0), ("tau_retail", 40.0), ("chatdev", 12.0))
_UNLIMITED_TOKENS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Setting:
    """One change to the main table's scope."""

    name: str
    """Begins the rows' ids."""
    title: str
    worker: Mapping[str, object]
    """Settings of the workers that differ."""
    models: tuple[str, ...] | None = None
    """None: those of the scope."""

    def scope(self, scope: Scope) -> Scope:
        """With the first seed only."""
        worker = scope.cluster.worker.model_copy(update=dict(self.worker))
        return scope.model_copy(
            update={
                "cluster": scope.cluster.model_copy(update={"worker": worker}),
                "seeds": scope.seeds[:1],
                "models": self.models or scope.models,
            }
        )


def _store(name: str, title: str, capacity_tokens: int) -> Setting:
    return Setting(name, title, {"store_capacity_tokens": capacity_tokens}, (ONE_MODEL,))


def _link(name: str, title: str, link: LinkSettings) -> Setting:
    return Setting(name, title, {"link": link}, (ONE_MODEL,))


SETTINGS: Mapping[Part, tuple[Setting, ...]] = MappingProxyType(
    {
        Part.CACHEBLEND: (Setting("cacheblend15", "CacheBlend, 15 %", {"fusion": cacheblend(0.15)}),),
        Part.LINKS: (
            _link("link45", "links of 45 GB/s + 0.6 ms", LinkSettings(floor_s=0.0006, bytes_per_s=45e9)),
            _link("link2_8", "links of 2.8 GB/s + 3 ms", LinkSettings(bytes_per_s=2.8e9)),
        ),
        Part.CAPACITIES: (
            _store("store50k", "stores of 50,000 tokens", 50_000),
            _store("store100k", "stores of 100,000 tokens", 100_000),
            _store("store400k", "stores of 400,000 tokens", 400_000),
            _store("store_unlimited", "unlimited stores", _UNLIMITED_TOKENS),
        ),
        Part.HYBRID: (
            Setting(
                "assumed_hybrid",
                f"{HYBRID_MODEL}, as if its recurrent layers did not exist: an assumption, not a result",
                {},
                (HYBRID_MODEL,),
            ),
        ),
    }
)


@dataclass(frozen=True, slots=True)
class TableApart:
    name: str
    title: str
    table: MainTable


def run_sessions(
    scope: Scope,
    rates: Mapping[tuple[GridCell, float], float],
    jobs: Jobs[CellJob, CellResult],
    on_finished: Callable[[object], None],
) -> TableApart:
    """Sessions that wait for each answer, at the open loop's rates.

    In the open loop a session's requests are milliseconds apart, so that much of what one could reuse of the one before
    is still being computed. Waiting makes workers less busy than a cell's load says.
    """
    closed = scope.model_copy(update={"closed_loop": True})
    table = run_table(closed, rates, jobs, on_finished, POLICIES)
    return TableApart("sessions", "Sessions that wait for each answer", table)


def run_paper_rates(
    scope: Scope, jobs: Jobs[CellJob, CellResult], on_finished: Callable[[object], None]
) -> TableApart | None:
    """The paper's own rates on a slower GPU, where faster ones would idle; None where the scope has none of them.

    A cell's load is what the rate turns out to be: how busy PIC workers behind Dynamo's KV cost are.
    """
    models = [model for model in PAPER_MODELS if model in scope.models]
    rates = {
        (GridCell(workload, model), rate_per_s): rate_per_s
        for model in models
        for workload, rate_per_s in PAPER_RATES_PER_S
        if workload in scope.workloads
    }
    if not rates:
        return None
    slower = scope.model_copy(update={"system": PAPER_SYSTEM, "seeds": scope.seeds[:1]})
    table = run_table(slower, rates, jobs, on_finished, POLICIES)
    cells = tuple(replace(cell, load=cell.timings[REFERENCE].busy_ratio) for cell in table.cells)
    return TableApart("paper_rates", "The paper's rates, on A100", MainTable(cells))
