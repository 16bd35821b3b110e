"""Measures the parts of the benchmark, each on a graph of its own."""

import time
from dataclasses import dataclass

import httpx

from nebula_bench.counted_tests import run_tests
from nebula_bench.pic_vllm.chat import ask_about
from nebula_bench.pic_vllm.first_token_times import FirstTokenClock, FirstTokenTimes
from nebula_bench.pic_vllm.memory import measure_memory
from nebula_bench.pic_vllm.model_texts import ModelTexts, read_model_texts
from nebula_bench.pic_vllm.passage_prompts import PassagePrompts
from nebula_bench.pic_vllm.report import (
    ServeFigures,
    exactness_markdown,
    exactness_measurements,
    memory_markdown,
    memory_measurements,
    serve_markdown,
    serve_measurements,
)
from nebula_bench.pic_vllm.settings import Part, PicVllmSettings
from nebula_bench.replay.frontend_client import FrontendClient
from nebula_bench.results import Measurement
from nebula_bench.serving.progress import Progress
from nebula_bench.serving.served_graph import GraphSpec, ServedGraph, open_graph

_GRAPH = "nebula"
_CHAT_PASSAGES = 4
_QUESTIONS = ("What are these texts about?", "Name one fact from these texts.")


@dataclass(frozen=True, slots=True)
class MeasuredPart:
    part: Part
    markdown: str
    measurements: tuple[Measurement, ...]


async def measure_part(part: Part, settings: PicVllmSettings, progress: Progress) -> MeasuredPart:
    """
    Raises:
        BenchError: a graph does not start, a request fails, or reuse is other than it should be.
    """
    match part:
        case Part.SERVE:
            figures = await _serve(settings, progress)
            return MeasuredPart(part, serve_markdown(figures), serve_measurements(figures))
        case Part.MEMORY:
            texts = read_model_texts(settings.model, settings.passages)
            spec = _spec(settings, f"--PrefillWorker.store_capacity_tokens={settings.memory_store_tokens}")
            progress.begin("start graphs:nebula")
            async with open_graph(spec, settings.logs, settings.start_s) as graph:
                growth = await measure_memory(graph, texts.vocabulary_tokens, settings, progress)
            return MeasuredPart(
                part, memory_markdown(growth, settings.memory_store_tokens), memory_measurements(growth)
            )
        case Part.EXACTNESS:
            progress.begin("run the tests of exactness")
            cases = await run_tests(settings.exactness_tests)
            return MeasuredPart(part, exactness_markdown(cases), exactness_measurements(cases))


def _spec(settings: PicVllmSettings, *overrides: str) -> GraphSpec:
    return GraphSpec(_GRAPH, settings.config, (f"--Common.model_path={settings.model.absolute()}", *overrides))


async def _serve(settings: PicVllmSettings, progress: Progress) -> ServeFigures:
    texts = read_model_texts(settings.model, settings.passages)
    progress.begin("start graphs:nebula")
    begin_s = time.monotonic()
    async with open_graph(_spec(settings), settings.logs, settings.start_s) as graph:
        ready_s = time.monotonic() - begin_s
        async with httpx.AsyncClient(base_url=graph.url, timeout=settings.answer_s, trust_env=False) as chat:
            progress.begin("ask about passages, and again in another order")
            passages = texts.texts[:_CHAT_PASSAGES]
            name = graph.info.model_name
            first = await ask_about(chat, name, passages, _QUESTIONS[0])
            second = await ask_about(chat, name, passages[::-1], _QUESTIONS[1])
        return ServeFigures(ready_s, first, second, await _first_tokens(graph, texts, settings, progress))


async def _first_tokens(
    graph: ServedGraph, texts: ModelTexts, settings: PicVllmSettings, progress: Progress
) -> FirstTokenTimes:
    prompts = PassagePrompts(
        texts.token_ids[_CHAT_PASSAGES:],
        texts.encode,
        prompt_tokens=settings.prompt_tokens,
        num_passages=settings.num_passages,
    )
    async with FrontendClient(graph.url) as client:
        return await FirstTokenClock(client, graph.info.model_name, prompts, settings).measure(progress)
