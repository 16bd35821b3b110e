"""The router as Dynamo's prefill stage: what a token costs, what comes before the first, who may be lost."""

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
import psutil

from nebula_bench.pseudo_tokens import PseudoVocabulary
from nebula_bench.replay.outcome import RequestOutcome
from nebula_bench.results import Bar, Measurement
from nebula_bench.serving.answer_reader import StreamedAnswer, stream_completion
from nebula_bench.serving.graph_replay import graph_spec, read_replay, run_replay
from nebula_bench.serving.markdown_table import markdown_table
from nebula_bench.serving.process_metrics import REPEATED_TOKENS
from nebula_bench.serving.progress import Progress
from nebula_bench.serving.served_graph import ROUTER, GraphSpec, ServedGraph, open_graph
from nebula_bench.serving.settings import ServingSettings
from nebula_bench.workload import TraceRequest

_PREDICTED = '--Frontend.extra_args=["--router-predicted-ttl-secs", "5"]'
"""What Dynamo's documentation advises for bursts of requests with a common prefix."""
_LONG_STREAMS, _LONG_TOKENS = 12, 400
_SCENE_S, _LOSS_AFTER_S, _SHORT_PERIOD_S = 15.0, 2.0, 0.1
_CPU_REQUESTS = 150
_TIMEOUT_S = 120.0
_NONE = Bar("==", 0)


@dataclass(frozen=True, slots=True)
class _Replayed:
    ttft_p50_ms: float
    hit_ratio: float
    repeated_ratio: float
    after_prefill_p50_ms: float
    router_cpu_s: float
    """A request."""
    num_errors: int


@dataclass(frozen=True, slots=True)
class _Loss:
    """One process that is lost under 12 long streams and ten requests a second."""

    name: str
    service: str
    number: signal.Signals
    overrides: tuple[str, ...] = ()
    bar: Bar | None = _NONE


_LOSSES = (
    _Loss("router_kill", ROUTER, signal.SIGKILL, ("--Router.workers=2",)),
    _Loss("router_term", ROUTER, signal.SIGTERM, ("--Router.workers=2",)),
    _Loss("decode_kill", "DecodeWorker", signal.SIGKILL, ("--DecodeWorker.workers=2",)),
    _Loss("decode_term", "DecodeWorker", signal.SIGTERM, ("--DecodeWorker.workers=2",)),
    _Loss("prefill_term", "PrefillWorker", signal.SIGTERM),
    # Dynamo's frontend holds no request back while its only decode worker is gone, so this is told without a bar.
    _Loss("lone_decode_kill", "DecodeWorker", signal.SIGKILL, bar=None),
)


async def measure_stage(
    trace: Sequence[TraceRequest], settings: ServingSettings, progress: Progress
) -> tuple[Measurement, ...]:
    """
    Raises:
        GraphError: a graph does not start, or ends too early.
    """
    nebula = graph_spec("nebula", settings.nebula_config, settings)
    two = graph_spec("nebula", settings.nebula_config, settings, "--Router.workers=2")
    dynamo = graph_spec("dynamo_kv", settings.dynamo_kv_config, settings, _PREDICTED)
    rows = [
        *await _measure_cpu(nebula, trace[:_CPU_REQUESTS], settings, progress),
        *await _measure_replays(nebula, two, dynamo, trace, settings, progress),
    ]
    for loss in _LOSSES:
        spec = graph_spec("nebula", settings.nebula_config, settings, *loss.overrides)
        rows += await _measure_loss(loss, spec, settings, progress)
    return tuple(rows)


def stage_markdown(rows: Sequence[Measurement]) -> str:
    """A table of all rows with their bars."""
    cells = [
        (row.id, f"{row.value:.4g} {row.unit}", f"{row.bar.op} {row.bar.value:g}" if row.bar else "") for row in rows
    ]
    return markdown_table(("row", "figure", "bar"), cells)


async def _measure_cpu(
    spec: GraphSpec, trace: Sequence[TraceRequest], settings: ServingSettings, progress: Progress
) -> list[Measurement]:
    few, many = [
        await _replay(spec, trace, settings.model_copy(update={"max_tokens": max_tokens}), progress)
        for max_tokens in (16, 512)
    ]
    ratio = many.router_cpu_s / few.router_cpu_s
    return [
        Measurement(id="router_cpu_512_over_16", value=ratio, unit="ratio", bar=Bar("<=", 1.05)),
        Measurement(id="router_cpu_ms_16", value=few.router_cpu_s * 1e3, unit="ms"),
    ]


async def _measure_replays(
    nebula: GraphSpec,
    two: GraphSpec,
    dynamo: GraphSpec,
    trace: Sequence[TraceRequest],
    settings: ServingSettings,
    progress: Progress,
) -> list[Measurement]:
    one, both, peer = [await _replay(spec, trace, settings, progress) for spec in (nebula, two, dynamo)]
    after = Bar("<=", 20)
    return [
        Measurement(id="first_token_after_prefill_ms", value=one.after_prefill_p50_ms, unit="ms", bar=after),
        Measurement(id="replay_ttft_ratio", value=one.ttft_p50_ms / peer.ttft_p50_ms, unit="ratio"),
        Measurement(id="replay_ttft_ms", value=one.ttft_p50_ms, unit="ms"),
        Measurement(id="replay_ttft_dynamo_kv_predicted_ms", value=peer.ttft_p50_ms, unit="ms"),
        Measurement(
            id="two_routers_hit_gap",
            value=100 * (one.hit_ratio - both.hit_ratio),
            unit="points",
            bar=Bar("<=", 1),
        ),
        Measurement(id="two_routers_repeated_ratio", value=both.repeated_ratio, unit="ratio", bar=Bar("<=", 0.005)),
        Measurement(id="replay_errors", value=one.num_errors + both.num_errors, unit="requests", bar=Bar("==", 0)),
    ]


async def _replay(
    spec: GraphSpec, trace: Sequence[TraceRequest], settings: ServingSettings, progress: Progress
) -> _Replayed:
    progress.begin(f"start graphs:{spec.name}")
    async with open_graph(spec, settings.logs) as graph:
        progress.begin(f"replay on graphs:{spec.name}, {settings.max_tokens} tokens", len(trace))
        outcomes: list[RequestOutcome] = []

        def take(outcome: RequestOutcome) -> None:
            outcomes.append(outcome)
            progress.advance()

        before_s = _cpu_s(graph)
        record = await run_replay(graph, trace, settings, take)
        cpu_s = _cpu_s(graph) - before_s
        replay = await read_replay(graph, record, settings)
        repeated = sum(metrics.total(REPEATED_TOKENS) for metrics in await graph.metrics(ROUTER))
        prompt = sum(outcome.prompt_tokens for outcome in outcomes)
        return _Replayed(
            ttft_p50_ms=replay.summary.ttft_ms.p50 or 0.0,
            hit_ratio=replay.summary.hit_ratio or 0.0,
            repeated_ratio=repeated / prompt,
            after_prefill_p50_ms=statistics.median(_after_prefill_ms(outcomes)),
            router_cpu_s=cpu_s / len(trace),
            num_errors=replay.summary.num_errors,
        )


def _cpu_s(graph: ServedGraph) -> float:
    pids = [process.pid for process in graph.processes(ROUTER) if process.pid is not None]
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(one.user + one.system for one in times)


def _after_prefill_ms(outcomes: Sequence[RequestOutcome]) -> list[float]:
    """The client's TTFT less what the prefill worker took, from the request's arrival there to the end of prefill."""
    return [
        1e3 * (outcome.ttft_s - outcome.receipt.timing.total_s)
        for outcome in outcomes
        if outcome.ttft_s is not None and outcome.receipt is not None
    ]


async def _measure_loss(
    loss: _Loss, spec: GraphSpec, settings: ServingSettings, progress: Progress
) -> list[Measurement]:
    progress.begin(f"lose a process: {loss.name}")
    async with (
        open_graph(spec, settings.logs) as graph,
        httpx.AsyncClient(
            base_url=graph.url, timeout=_TIMEOUT_S, trust_env=False, limits=httpx.Limits(max_connections=None)
        ) as client,
    ):
        scene = _Scene(client, graph.info.model_name)
        expected = await scene.answer("expected", _LONG_TOKENS)
        answers, gap_s = await scene.lose(graph, loss)
    streams = answers[:_LONG_STREAMS]
    errors = sum(answer.error is not None for answer in answers)
    rows = [Measurement(id=f"{loss.name}_errors", value=errors, unit="requests", bar=loss.bar)]
    if loss.bar is not None:
        same = sum(answer.text == expected.text for answer in streams)
        bar = Bar("==", len(streams))
        rows.append(Measurement(id=f"{loss.name}_same_texts", value=same, unit="answers", bar=bar))
    else:
        rows.append(Measurement(id=f"{loss.name}_serves_again_s", value=gap_s, unit="s"))
    return rows


class _Scene:
    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self._client = client
        self._model = model
        self._vocabulary = PseudoVocabulary()
        self._last_failure_s = 0.0

    async def answer(self, name: str, max_tokens: int) -> StreamedAnswer:
        prompt = self._vocabulary.tokens(name, 1_000).tolist()
        pieces = stream_completion(self._client, model=self._model, prompt=prompt, max_tokens=max_tokens)
        answer = [answer async for answer in pieces][-1]
        if answer.error is not None:
            self._last_failure_s = time.perf_counter()
        return answer

    async def lose(self, graph: ServedGraph, loss: _Loss) -> tuple[Sequence[StreamedAnswer], float]:
        """All answers, the long ones first; and from the loss to the last failure, in seconds."""
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(self.answer(f"long {number}", _LONG_TOKENS)) for number in range(_LONG_STREAMS)]
            started_s = time.perf_counter()
            lost_s: float | None = None
            while (now_s := time.perf_counter()) < started_s + _SCENE_S:
                if lost_s is None and now_s >= started_s + _LOSS_AFTER_S:
                    lost_s = now_s
                    os.kill(graph.processes(loss.service)[0].pid or 0, loss.number)
                asked.append(tasks.create_task(self.answer(f"short {len(asked)}", 8)))
                await asyncio.sleep(_SHORT_PERIOD_S)
        return [task.result() for task in asked], max(0.0, self._last_failure_s - (lost_s or 0.0))
