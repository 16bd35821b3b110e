"""Parallel prefill: what it brings a cold prompt, where it is not used, and what it costs under full load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nebula_bench.data_plane.parallel_idle import measure_cold_prompts, nebula_spec
from nebula_bench.data_plane.parallel_loaded import measure_loaded
from nebula_bench.data_plane.parallel_prompts import ALL_LINKS, ColdRun, Links, cold_prompts
from nebula_bench.data_plane.parallel_settings import ParallelSettings
from nebula_bench.data_plane.parallel_virtual import VirtualPair, run_cold_prompts, run_pair
from nebula_bench.errors import BenchError
from nebula_bench.serving.graph_replay import GraphReplay
from nebula_bench.serving.progress import Progress
from nebula_bench.workload import TraceRequest, read_trace

Runs = Mapping[Links | None, ColdRun]
"""By links; None: on one worker alone, where nothing travels before the first token."""


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """One replay with parallel prefill and one without, of the same arrivals."""

    seed: int
    parallel: GraphReplay
    alone: GraphReplay
    virtual: VirtualPair


@dataclass(frozen=True, slots=True)
class ParallelPrefill:
    idle: Runs
    idle_virtual: Runs
    loaded: tuple[LoadedPair, ...]


async def measure_parallel(settings: ParallelSettings, logs: Path | None, progress: Progress) -> ParallelPrefill:
    """
    Raises:
        TraceError: the trace cannot be read.
        BenchError: there is no trace, a graph does not start or ends too early, or a cold prompt is not answered.
    """
    if settings.trace is None:
        raise BenchError("part parallel needs a trace")
    trace = read_trace(settings.trace, settings.num_requests)
    prompts = cold_prompts(settings.num_prompts)
    idle: dict[Links | None, ColdRun] = {}
    for links in (None, *ALL_LINKS):
        spec = nebula_spec(settings, settings.idle_time_scale, parallel=links is not None, links=links)
        idle[links] = await measure_cold_prompts(spec, prompts, settings.idle_time_scale, logs, progress)
    pairs = [
        await _measure_pair(trace, settings, seed, logs, progress, parallel_first=turn % 2 == 0)
        for turn, seed in enumerate(settings.seeds)
    ]
    return ParallelPrefill(idle, {links: run_cold_prompts(prompts, links) for links in idle}, tuple(pairs))


async def _measure_pair(
    trace: Sequence[TraceRequest],
    settings: ParallelSettings,
    seed: int,
    logs: Path | None,
    progress: Progress,
    *,
    parallel_first: bool,
) -> LoadedPair:
    """The machine's slow changes meet both kinds alike where every other pair begins with the other."""
    replays: dict[bool, GraphReplay] = {}
    for parallel in (parallel_first, not parallel_first):
        spec = nebula_spec(settings, settings.loaded_time_scale, parallel=parallel, links=None)
        replays[parallel] = await measure_loaded(spec, trace, settings, seed, logs, progress)
    progress.begin("the same replays in virtual time")
    return LoadedPair(seed, replays[True], replays[False], run_pair(trace, settings, seed))
