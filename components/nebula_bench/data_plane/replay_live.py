"""A trace on the running graph under one way to know who has what."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from nebula_bench.cluster.repeated import ComputedAgain, PrefilledRequest, judge_repeated
from nebula_bench.data_plane.cluster_watch import ClusterWatch, open_watch
from nebula_bench.data_plane.replay_run import AccountingRun, mean_phases_ms
from nebula_bench.data_plane.replay_settings import LiveReplaySettings, ReplayScene
from nebula_bench.replay.runner import ReplayRecord
from nebula_bench.serving.graph_replay import GraphReplay, graph_spec, read_replay, run_replay
from nebula_bench.serving.progress import Progress
from nebula_bench.serving.served_graph import GraphSpec, open_graph
from nebula_bench.serving.settings import ServingSettings
from nebula_bench.workload import TraceRequest
from nebula_router.settings import Accounting, RouterSettings

_GRAPH = "nebula"
_TTL_S = RouterSettings().ttl_s


async def replay_live(
    accounting: Accounting,
    scene: ReplayScene,
    trace: Sequence[TraceRequest],
    settings: LiveReplaySettings,
    logs: Path | None,
    progress: Progress,
) -> tuple[AccountingRun, GraphReplay]:
    """Starts the graph with empty caches, replays the trace, and stops it.

    Raises:
        GraphError: it does not start, or ends too early.
        DecodeError: what it publishes cannot be read.
    """
    serving = _serving(settings, None if logs is None else logs / f"replay-{scene.store_capacity_tokens}-{accounting}")
    progress.begin(f"start graphs:nebula, accounting {accounting}")
    async with open_graph(replay_spec(accounting, scene, settings), serving.logs) as graph:
        await graph.wait_until_restarted()
        async with open_watch(graph.info.nats_url) as watch:
            progress.begin(f"replay, accounting {accounting}", len(trace))
            record = await run_replay(graph, trace, serving, lambda _: progress.advance())
        figures = await read_replay(graph, record, serving)
    return _run_of(record, figures, watch, scene, settings), figures


def replay_spec(accounting: Accounting, scene: ReplayScene, settings: LiveReplaySettings) -> GraphSpec:
    """The graph of one run; what the router keeps for a while is kept as long in simulated time as at scale 1."""
    return graph_spec(
        _GRAPH,
        settings.config,
        _serving(settings, None),
        f"--Router.accounting={accounting}",
        f"--Router.ttl_s={_TTL_S * settings.time_scale}",
        f"--PrefillWorker.store_capacity_tokens={scene.store_capacity_tokens}",
        f"--PrefillWorker.sim.event_delay_s={scene.event_delay_s}",
    )


def _serving(settings: LiveReplaySettings, logs: Path | None) -> ServingSettings:
    return ServingSettings(
        trace=settings.trace,
        num_requests=settings.num_requests,
        rate_per_s=settings.rate_per_s,
        seed=settings.seed,
        max_tokens=settings.max_tokens,
        time_scale=settings.time_scale,
        nebula_config=settings.config,
        logs=logs,
    )


def _run_of(
    record: ReplayRecord,
    figures: GraphReplay,
    watch: ClusterWatch,
    scene: ReplayScene,
    settings: LiveReplaySettings,
) -> AccountingRun:
    summary = figures.summary
    timed = [
        (outcome.receipt, outcome.ttft_s)
        for outcome in record.outcomes
        if outcome.is_ok and outcome.receipt is not None and outcome.ttft_s is not None
    ]
    return AccountingRun(
        ttft_ms=summary.ttft_ms,
        tokens=summary.tokens,
        computed_again=judge_watched(record, watch, scene.event_delay_s * settings.time_scale),
        phases_ms=mean_phases_ms(timed, settings.time_scale),
        num_errors=summary.num_errors,
    )


def judge_watched(record: ReplayRecord, watch: ClusterWatch, publish_delay_s: float) -> ComputedAgain:
    """As in virtual time, by the moments at which the client sent and the graph's processes published."""
    requests = tuple(_prefilled(record, watch))
    return judge_repeated(watch.worker_log(publish_delay_s), requests, requests)


def _prefilled(record: ReplayRecord, watch: ClusterWatch) -> Iterator[PrefilledRequest]:
    decisions, start_s = watch.known_at_decision(), record.started_at_unix_s
    for outcome in record.outcomes:
        receipt, first_s = outcome.receipt, outcome.first_content_s
        if receipt is None or first_s is None or (known := decisions.get(receipt.request_id)) is None:
            continue
        # A busy router publishes a decision late, even when what was decided is done. It decided after the client sent.
        # Once the segments are stored the store's events tell of them.
        done_at_s = min(start_s + first_s, known.published_at_s + receipt.timing.total_s)
        yield PrefilledRequest(start_s + outcome.sent_s, done_at_s, receipt, known.segments)
