"""A prefill worker dies after its reply, before the decode worker has pulled the prompt's KV."""

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx

from nebula_bench.pseudo_tokens import PseudoVocabulary
from nebula_bench.serving.answer_reader import StreamedAnswer, stream_completion
from nebula_bench.serving.process_metrics import RETRIES
from nebula_bench.serving.progress import Progress
from nebula_bench.serving.served_graph import ROUTER, GraphError, GraphSpec, ServedGraph, open_graph
from nebula_bench.serving.settings import ServingSettings

SLOW_LINK_S = 1.0
"""Fixed time of a prefill worker's transfers in this scene, simulated: the kill comes well before their end."""

_PROMPT_TOKENS = 2_000
_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverKill:
    """One answer whose prefill worker died under it."""

    process: str
    is_complete: bool
    """The client got as many tokens as when nobody dies."""
    is_same_text: bool
    """And the same ones."""
    recovery_s: float
    """From the kill to the end of the answer, real seconds."""
    error: str | None

    @property
    def is_ok(self) -> bool:
        return self.error is None and self.is_complete


@dataclass(frozen=True, slots=True)
class HandoverKills:
    kills: tuple[HandoverKill, ...]
    num_retries: int
    """Requests that the router placed anew."""
    num_tokens: int
    """Of each answer."""

    @property
    def num_errors(self) -> int:
        return sum(not kill.is_ok for kill in self.kills)

    @property
    def num_same_text(self) -> int:
        return sum(kill.is_same_text for kill in self.kills)


async def measure_handover_kills(spec: GraphSpec, settings: ServingSettings, progress: Progress) -> HandoverKills:
    """Kills one prefill worker after another, each between its reply and decode's pull.

    The decode worker says the prefill worker's token at once, so the first token tells that the reply is there;
    `spec` must make prefill workers' transfers take `SLOW_LINK_S`.

    Raises:
        GraphError: the graph does not start, or does not answer even undisturbed.
    """
    progress.begin(f"start graphs:{spec.name} with slow transfers")
    async with open_graph(spec, settings.logs) as graph:
        progress.begin("kill prefill workers before decode's pull", settings.num_handover_kills)
        async with httpx.AsyncClient(base_url=graph.url, timeout=_TIMEOUT_S, trust_env=False) as client:
            scene = _Scene(graph, client, settings.max_tokens)
            expected = await scene.answer_undisturbed()
            kills = []
            for round_number in range(settings.num_handover_kills):
                kills.append(await scene.kill_before_pull(round_number, expected))
                await graph.wait_until_restarted()
                progress.advance()
            retries = sum(metrics.total(RETRIES) for metrics in await graph.metrics(ROUTER))
            return HandoverKills(tuple(kills), round(retries), settings.max_tokens)


class _Scene:
    def __init__(self, graph: ServedGraph, client: httpx.AsyncClient, max_tokens: int) -> None:
        self._graph = graph
        self._client = client
        self._max_tokens = max_tokens
        self._model = graph.info.model_name
        self._vocabulary = PseudoVocabulary()

    async def answer_undisturbed(self) -> StreamedAnswer:
        answer = [answer async for answer in self._stream("undisturbed")][-1]
        if answer.error is not None:
            raise GraphError(f"graphs:{self._graph.name} does not answer: {answer.error}")
        return answer

    async def kill_before_pull(self, round_number: int, expected: StreamedAnswer) -> HandoverKill:
        workers = await self._graph.prefill_workers()
        killed_s, process = 0.0, ""
        answer = StreamedAnswer()
        async for answer in self._stream(f"round {round_number}"):
            if answer.prefill_worker_ids and not process:
                victim = workers[answer.prefill_worker_ids[0]]
                process, killed_s = victim.name, time.perf_counter()
                await self._graph.kill(victim)
        return HandoverKill(
            process=process,
            is_complete=(answer.num_tokens, answer.finish_reason) == (expected.num_tokens, expected.finish_reason),
            is_same_text=answer.text == expected.text,
            recovery_s=time.perf_counter() - killed_s,
            error=answer.error,
        )

    def _stream(self, prompt_name: str) -> AsyncIterator[StreamedAnswer]:
        prompt = self._vocabulary.tokens(prompt_name, _PROMPT_TOKENS).tolist()
        return stream_completion(self._client, model=self._model, prompt=prompt, max_tokens=self._max_tokens)
