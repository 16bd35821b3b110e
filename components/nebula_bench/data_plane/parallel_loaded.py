"""A trace on a graph whose prefill workers are busy all the time."""

from collections.abc import Sequence
from pathlib import Path

from nebula_bench.data_plane.parallel_settings import ParallelSettings
from nebula_bench.data_plane.parallel_virtual import LOADED_OUTPUT_TOKENS
from nebula_bench.replay.frontend_client import FrontendClient
from nebula_bench.replay.runner import Replay
from nebula_bench.replay.settings import ReplaySettings
from nebula_bench.replay.summary import summarize
from nebula_bench.serving.graph_replay import GraphReplay, prefill_quantiles_ms
from nebula_bench.serving.process_metrics import STEP_LAG, total_histogram
from nebula_bench.serving.progress import Progress
from nebula_bench.serving.served_graph import PREFILL_WORKER, GraphSpec, open_graph
from nebula_bench.workload import TraceRequest


async def measure_loaded(
    spec: GraphSpec,
    trace: Sequence[TraceRequest],
    settings: ParallelSettings,
    seed: int,
    logs: Path | None,
    progress: Progress,
) -> GraphReplay:
    """Starts the graph with empty caches, replays the trace, and stops it.

    Raises:
        GraphError: it does not start, or ends too early.
    """
    progress.begin(f"start graphs:{spec.name}")
    async with open_graph(spec, logs) as graph:
        progress.begin(f"replay under full load, seed {seed}", len(trace))
        model = graph.info.model_name
        replaying = replay_settings(settings, seed, graph.url, model)
        async with FrontendClient(graph.url) as client:
            replay = Replay(trace, replaying, client, model, lambda _: progress.advance())
            await replay.run()
        return GraphReplay(
            graph=graph.name,
            num_prefill_workers=len(graph.processes(PREFILL_WORKER)),
            summary=summarize(replay.record, replaying),
            prefill_ms=prefill_quantiles_ms(replay.record.outcomes, settings.loaded_time_scale),
            step_lag=total_histogram(await graph.metrics(PREFILL_WORKER), STEP_LAG),
        )


def replay_settings(settings: ParallelSettings, seed: int, url: str, model: str) -> ReplaySettings:
    return ReplaySettings(
        url=url,
        model=model,
        rate_per_s=settings.rate_per_s,
        seed=seed,
        max_tokens=LOADED_OUTPUT_TOKENS,
        time_scale=settings.loaded_time_scale,
    )
