"""Cold prompts on an idle graph, one at a time."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from nebula_bench.data_plane.parallel_prompts import ColdAnswer, ColdRun, Links, passage_tokens
from nebula_bench.data_plane.parallel_settings import ParallelSettings
from nebula_bench.errors import BenchError
from nebula_bench.pseudo_tokens import PseudoVocabulary
from nebula_bench.replay.completion_request import encode_completion
from nebula_bench.replay.frontend_client import FrontendClient
from nebula_bench.serving.decision_feed import DecisionFeed, open_decisions
from nebula_bench.serving.progress import Progress
from nebula_bench.serving.served_graph import GraphSpec, ServedGraph, open_graph
from nebula_bench.workload import TraceRequest
from nebula_protocol.ids import WorkerId

_TIMEOUT_S = 120.0
_DECISION_LIMIT_S = 5.0
_POLL_S = 0.01
_REST_S = 0.1
"""Until events and receipts of the answer before are taken in everywhere."""


def nebula_spec(settings: ParallelSettings, time_scale: float, *, parallel: bool, links: Links | None) -> GraphSpec:
    overrides = [f"--Common.time_scale={time_scale}", f"--Router.parallel_prefill={str(parallel).lower()}"]
    if links is not None:
        overrides.append(f"--PrefillWorker.link.bytes_per_s={links.bytes_per_s}")
        overrides.append(f"--PrefillWorker.stream_pieces={links.stream_pieces}")
    return GraphSpec("nebula", settings.config, tuple(overrides))


async def measure_cold_prompts(
    spec: GraphSpec, prompts: Sequence[TraceRequest], time_scale: float, logs: Path | None, progress: Progress
) -> ColdRun:
    """
    Raises:
        GraphError: the graph does not start, or ends too early.
        BenchError: a prompt is not answered.
    """
    progress.begin(f"start graphs:{spec.name}")
    async with open_graph(spec, logs) as graph, open_decisions(graph.info.nats_url) as decisions:
        progress.begin("cold prompts on an idle cluster", len(prompts))
        async with FrontendClient(graph.url) as client:
            answers = []
            for prompt in prompts:
                answers.append(await _measure_one(graph, client, decisions, prompt, time_scale))
                progress.advance()
        return ColdRun(tuple(answers))


async def _measure_one(
    graph: ServedGraph, client: FrontendClient, decisions: DecisionFeed, prompt: TraceRequest, time_scale: float
) -> ColdAnswer:
    body = encode_completion(prompt, model=graph.info.model_name, max_tokens=2, vocabulary=PseudoVocabulary())
    num_before = len(decisions.seen)
    await asyncio.sleep(_REST_S)
    sent_s = time.perf_counter()
    reply = await client.complete(body, _TIMEOUT_S * time_scale)
    if reply.error is not None or reply.first_content_s is None:
        raise BenchError(f"a cold prompt was not answered: {reply.error}")
    helpers = await _helpers(decisions, num_before)
    return ColdAnswer(passage_tokens(prompt), (reply.first_content_s - sent_s) / time_scale, len(helpers))


async def _helpers(decisions: DecisionFeed, num_before: int) -> frozenset[WorkerId]:
    """Of the decisions after the first `num_before`, which may come later than the answer.

    Raises:
        BenchError: none comes.
    """
    try:
        async with asyncio.timeout(_DECISION_LIMIT_S):
            while len(decisions.seen) == num_before:
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        raise BenchError("the router does not publish its decisions") from error
    return frozenset[WorkerId]().union(*(seen.helper_ids for seen in decisions.seen[num_before:]))
