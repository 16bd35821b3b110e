"""Passages that another worker has or is computing, on graphs with real and with simulated workers."""

from dataclasses import dataclass
from pathlib import Path

from nebula_bench.data_plane.fetch_settings import FetchSettings
from nebula_bench.data_plane.fetched import FetchClock, FetchTurns
from nebula_bench.data_plane.first_answer import ChosenWorkerClient
from nebula_bench.data_plane.joined import JoinedPairs, measure_joined
from nebula_bench.pic_vllm.model_texts import read_model_texts
from nebula_bench.pic_vllm.passage_prompts import PassagePrompts
from nebula_bench.serving.progress import Progress
from nebula_bench.serving.served_graph import GraphSpec, open_graph
from nebula_serve.sim_model.model_folder import packaged_folder

_GRAPH = "nebula"


@dataclass(frozen=True, slots=True)
class FetchFigures:
    fetched: FetchTurns
    joined: JoinedPairs
    """On real workers."""
    joined_sim: JoinedPairs


async def measure_fetch(settings: FetchSettings, logs: Path | None, progress: Progress) -> FetchFigures:
    """
    Raises:
        BenchError: a graph does not start, a request fails, or passages come from elsewhere than they should.
    """
    joined_sim = await _simulated(settings, logs, progress)
    fetched, joined = await _real(settings, logs, progress)
    return FetchFigures(fetched, joined, joined_sim)


async def _real(settings: FetchSettings, logs: Path | None, progress: Progress) -> tuple[FetchTurns, JoinedPairs]:
    spec = GraphSpec(
        _GRAPH,
        settings.config,
        (
            f"--Common.model_path={settings.model.absolute()}",
            f"--PrefillWorker.workers={settings.num_workers}",
            # The workers share this machine's cores, so helpers are no faster, and only the chosen one shall compute.
            "--Router.parallel_prefill=false",
        ),
    )
    prompts = _prompts(settings, settings.model)
    progress.begin("start graphs:nebula with real workers")
    async with open_graph(spec, logs, settings.start_s) as graph:
        workers = sorted(await graph.prefill_workers())
        async with ChosenWorkerClient(graph.url, graph.info.model_name, settings.answer_s) as client:
            fetched = await FetchClock(client, workers, prompts).measure(settings.num_pairs, progress)
            joined = await measure_joined(
                client,
                workers,
                prompts,
                num_pairs=settings.num_joined,
                num_in_front=settings.num_in_front,
                progress=progress,
            )
    return fetched, joined


async def _simulated(settings: FetchSettings, logs: Path | None, progress: Progress) -> JoinedPairs:
    spec = GraphSpec(_GRAPH, settings.sim_config, (f"--Common.time_scale={settings.sim_time_scale:g}",))
    prompts = _prompts(settings, packaged_folder())
    progress.begin("start graphs:nebula with simulated workers")
    async with open_graph(spec, logs, settings.start_s) as graph:
        workers = sorted(await graph.prefill_workers())
        async with ChosenWorkerClient(graph.url, graph.info.model_name, settings.answer_s) as client:
            return await measure_joined(
                client,
                workers,
                prompts,
                num_pairs=settings.num_joined,
                num_in_front=settings.sim_num_in_front,
                progress=progress,
            )


def _prompts(settings: FetchSettings, model: Path) -> PassagePrompts:
    texts = read_model_texts(model, settings.passages)
    return PassagePrompts(
        texts.token_ids, texts.encode, prompt_tokens=settings.prompt_tokens, num_passages=settings.num_passages
    )
