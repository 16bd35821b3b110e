"""The same prompts and the same replays in virtual time: what remains when the machine is taken away."""

from collections.abc import Sequence
from dataclasses import dataclass

from nebula_bench.cluster.settings import ClusterSettings, LoadSettings
from nebula_bench.cluster.simulation import Record, Simulation
from nebula_bench.cluster.summary import CellSummary, summarize
from nebula_bench.data_plane.parallel_prompts import ColdAnswer, ColdRun, Links, passage_tokens
from nebula_bench.data_plane.parallel_settings import ParallelSettings
from nebula_bench.policies.catalogue import find_policy
from nebula_bench.workload import TraceRequest

_WITH, _WITHOUT = "nebula", "nebula_no_parallel"
LOADED_OUTPUT_TOKENS = 1
"""The first is prefill's. With more, the link of the one decode worker would be the bottleneck: 109 prompts of 3,000
tokens are 54 GB a second, and prompts would pile up at the prefill workers."""
_AT_ONCE_PER_S = 1_000.0
"""The prompts of one client wait for one another, so that all may come at once."""


def run_cold_prompts(prompts: Sequence[TraceRequest], links: Links | None) -> ColdRun:
    """
    Args:
        links: None for one worker alone.
    """
    cluster = ClusterSettings()
    if links is not None:
        link = cluster.worker.link.model_copy(update={"bytes_per_s": links.bytes_per_s})
        worker = cluster.worker.model_copy(update={"link": link, "stream_pieces": links.stream_pieces})
        cluster = cluster.model_copy(update={"worker": worker})
    load = LoadSettings(rate_per_s=_AT_ONCE_PER_S, output_tokens=2, closed_loop=True)
    record = _run(cluster, load, prompts, parallel=links is not None)
    return ColdRun(
        tuple(
            ColdAnswer(
                passage_tokens(prompts[outcome.position]),
                outcome.ttft_s,
                0 if outcome.placement is None else len(outcome.placement.helpers),
            )
            for outcome in record.outcomes
            if outcome.ttft_s is not None
        )
    )


@dataclass(frozen=True, slots=True)
class VirtualPair:
    """One replay with parallel prefill and one without, of the same arrivals and noise."""

    seed: int
    parallel: CellSummary
    alone: CellSummary


def run_pair(trace: Sequence[TraceRequest], settings: ParallelSettings, seed: int) -> VirtualPair:
    load = LoadSettings(rate_per_s=settings.rate_per_s, seed=seed, output_tokens=LOADED_OUTPUT_TOKENS)
    cluster = ClusterSettings()
    return VirtualPair(
        seed=seed,
        parallel=summarize(_run(cluster, load, trace, parallel=True), warmup_requests=0),
        alone=summarize(_run(cluster, load, trace, parallel=False), warmup_requests=0),
    )


def _run(cluster: ClusterSettings, load: LoadSettings, trace: Sequence[TraceRequest], *, parallel: bool) -> Record:
    return Simulation(cluster, load, find_policy(_WITH if parallel else _WITHOUT)).run(trace)
