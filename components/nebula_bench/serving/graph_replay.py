"""A trace replayed on a graph: what the client saw, what the workers did, and whether the machine kept time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nebula_bench.replay.frontend_client import FrontendClient
from nebula_bench.replay.outcome import RequestOutcome
from nebula_bench.replay.runner import Replay, ReplayRecord
from nebula_bench.replay.summary import Quantiles, ReplaySummary, quantiles_ms, summarize
from nebula_bench.serving.histogram import Histogram
from nebula_bench.serving.process_metrics import STEP_LAG, total_histogram
from nebula_bench.serving.progress import Progress
from nebula_bench.serving.served_graph import PREFILL_WORKER, GraphSpec, ServedGraph, open_graph
from nebula_bench.serving.settings import ServingSettings
from nebula_bench.workload import TraceRequest

_MS_PER_S = 1e3


@dataclass(frozen=True, slots=True)
class GraphReplay:
    graph: str
    num_prefill_workers: int
    summary: ReplaySummary
    prefill_ms: Quantiles
    """From a request's arrival at its prefill worker to the end of its prefill, as the worker's receipt tells."""
    step_lag: Histogram
    """Seconds by which prefill workers noticed too late that a simulated step was over. Not scaled."""

    @property
    def num_answers(self) -> int:
        return self.summary.num_requests - self.summary.num_errors

    def step_lag_ms(self, share: float) -> float | None:
        lag_s = self.step_lag.quantile(share)
        return None if lag_s is None else lag_s * _MS_PER_S


def graph_spec(name: str, config: Path, settings: ServingSettings, *overrides: str) -> GraphSpec:
    """The graph with the benchmark's time scale."""
    return GraphSpec(name, config, (f"--Common.time_scale={settings.time_scale}", *overrides))


async def measure_replay(
    spec: GraphSpec, trace: Sequence[TraceRequest], settings: ServingSettings, progress: Progress
) -> GraphReplay:
    """Starts the graph with empty caches, replays the trace, and stops it.

    Raises:
        GraphError: it does not start, or ends too early.
    """
    progress.begin(f"start graphs:{spec.name}")
    async with open_graph(spec, settings.logs) as graph:
        progress.begin(f"replay on graphs:{spec.name}", len(trace))
        record = await run_replay(graph, trace, settings, lambda _: progress.advance())
        return await read_replay(graph, record, settings)


async def read_replay(graph: ServedGraph, record: ReplayRecord, settings: ServingSettings) -> GraphReplay:
    """What there is to tell while the graph that was replayed on still runs."""
    return GraphReplay(
        graph=graph.name,
        num_prefill_workers=len(graph.processes(PREFILL_WORKER)),
        summary=summarize(record, settings.replay_settings(graph.url, graph.info.model_name)),
        prefill_ms=prefill_quantiles_ms(record.outcomes, settings.time_scale),
        step_lag=total_histogram(await graph.metrics(PREFILL_WORKER), STEP_LAG),
    )


async def run_replay(
    graph: ServedGraph,
    trace: Sequence[TraceRequest],
    settings: ServingSettings,
    on_finished: Callable[[RequestOutcome], None],
) -> ReplayRecord:
    info = graph.info
    async with FrontendClient(graph.url) as client:
        replay = Replay(
            trace, settings.replay_settings(graph.url, info.model_name), client, info.model_name, on_finished
        )
        await replay.run()
    return replay.record


def prefill_quantiles_ms(outcomes: Sequence[RequestOutcome], time_scale: float) -> Quantiles:
    receipts = (outcome.receipt for outcome in outcomes if outcome.is_ok)
    return quantiles_ms([receipt.timing.total_s for receipt in receipts if receipt is not None], time_scale)
