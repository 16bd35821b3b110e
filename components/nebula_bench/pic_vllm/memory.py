"""Resident memory of a graph's processes over many requests with more segments than fit."""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from nebula_bench.errors import BenchError
from nebula_bench.pic_vllm.passage_prompts import MarkedPrompt
from nebula_bench.pic_vllm.settings import PicVllmSettings
from nebula_bench.replay.frontend_client import FrontendClient
from nebula_bench.serving.progress import Progress
from nebula_bench.serving.served_graph import ServedGraph

_SEGMENTS_A_REQUEST = 2
_ANSWER_TOKENS = 2
_FIRST_PLAIN_TOKEN = 100
"""Ids below it have meanings of their own in most vocabularies."""
_FRAME_TOKENS = 4
_WARM_UP_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    num_requests: int
    num_segments: int
    segment_tokens: int
    before_bytes: dict[str, int]
    """Per service, what its processes and theirs have resident after the first few requests."""
    after_bytes: dict[str, int]

    @property
    def ratio(self) -> float:
        return sum(self.after_bytes.values()) / sum(self.before_bytes.values())


def random_prompt(chance: random.Random, vocabulary_tokens: int, segment_tokens: int) -> MarkedPrompt:
    """Two segments that nobody has seen, between a few other tokens."""

    def draw(count: int) -> list[int]:
        return [chance.randrange(_FIRST_PLAIN_TOKEN, vocabulary_tokens) for _ in range(count)]

    tokens, spans = draw(_FRAME_TOKENS), []
    for _ in range(_SEGMENTS_A_REQUEST):
        spans.append((len(tokens), len(tokens) + segment_tokens))
        tokens += draw(segment_tokens + _FRAME_TOKENS)
    return MarkedPrompt(tuple(tokens), tuple(spans))


async def measure_memory(
    graph: ServedGraph, vocabulary_tokens: int, settings: PicVllmSettings, progress: Progress
) -> MemoryGrowth:
    """
    Raises:
        BenchError: a request fails.
    """
    chance = random.Random(0)
    num_warm_up = max(1, round(settings.memory_requests * _WARM_UP_SHARE))
    progress.begin("send requests with new segments", num_warm_up + settings.memory_requests)
    async with FrontendClient(graph.url) as client:
        sender = _Sender(client, graph.info.model_name, settings, progress)

        async def send(count: int) -> None:
            await sender.send(
                random_prompt(chance, vocabulary_tokens, settings.memory_segment_tokens) for _ in range(count)
            )

        await send(num_warm_up)
        before = resident_bytes(graph)
        await send(settings.memory_requests)
        after = resident_bytes(graph)
    num_segments = _SEGMENTS_A_REQUEST * settings.memory_requests
    return MemoryGrowth(
        settings.memory_requests, num_segments, num_segments * settings.memory_segment_tokens, before, after
    )


def resident_bytes(graph: ServedGraph) -> dict[str, int]:
    """Per service, of its processes together with those that they have started."""
    sums: dict[str, int] = {}
    for process in graph.info.processes:
        if process.pid is not None:
            sums[process.service] = sums.get(process.service, 0) + _tree_bytes(process.pid)
    return sums


def _tree_bytes(pid: int) -> int:
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
        return sum(int(member.memory_info().rss) for member in family)
    except psutil.NoSuchProcess as error:
        raise BenchError(f"process {error.pid} ended while memory was measured") from error


class _Sender:
    """A few requests in flight at any time."""

    def __init__(self, client: FrontendClient, model: str, settings: PicVllmSettings, progress: Progress) -> None:
        self._client = client
        self._model = model
        self._settings = settings
        self._progress = progress

    async def send(self, prompts: Iterable[MarkedPrompt]) -> None:
        waiting = iter(prompts)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._settings.memory_in_flight):
                tasks.create_task(self._send_in_turn(waiting))

    async def _send_in_turn(self, waiting: Iterable[MarkedPrompt]) -> None:
        for prompt in waiting:
            body = prompt.body(self._model, max_tokens=_ANSWER_TOKENS)
            reply = await self._client.complete(body, self._settings.answer_s)
            if reply.error is not None:
                raise BenchError(f"a request with new segments failed: {reply.error}")
            self._progress.advance()
