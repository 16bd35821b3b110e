"""`nebula bench pic-vllm`: what clients of real vLLM workers see, on a graph that the command starts itself."""

from pathlib import Path
from typing import Annotated

import typer

from nebula_bench.pic_vllm.settings import Part, PicVllmSettings
from nebula_cli.checked_settings import make_settings
from nebula_cli.parts_run import run_parts

_DEFAULTS = PicVllmSettings(
    model=Path("models/SmolLM2-135M-Instruct"), passages=Path("../shared/data/passages.jsonl.gz")
)


def pic_vllm(
    part: Annotated[
        list[Part] | None, typer.Option(help="Only this part; several allowed.", show_default="all")
    ] = None,
    model: Annotated[Path, typer.Option(help="Folder of the model; `make model` makes the default.")] = _DEFAULTS.model,
    passages: Annotated[Path, typer.Option(help="Texts: .jsonl.gz with id and text.")] = _DEFAULTS.passages,
    config: Annotated[Path, typer.Option(help="Settings of graphs:nebula.")] = _DEFAULTS.config,
    repeats: Annotated[int, typer.Option(help="Prompts behind each median.")] = _DEFAULTS.num_repeats,
    tokens: Annotated[int, typer.Option(help="Length of each measured prompt.")] = _DEFAULTS.prompt_tokens,
    requests: Annotated[int, typer.Option(help="Over which memory may not grow.")] = _DEFAULTS.memory_requests,
    results: Annotated[Path | None, typer.Option(help="Write rows to this results file.", show_default=False)] = None,
    docs: Annotated[
        Path | None, typer.Option(help="Put the tables into this document, between its marks.", show_default=False)
    ] = None,
    logs: Annotated[Path | None, typer.Option(help="Keep the graphs' logs in this folder.", show_default=False)] = None,
) -> None:
    """Time first tokens with and without reuse, watch memory, and run the tests of exactness.

    Needs vLLM and the machine for itself; about 15 minutes on two cores. Exit code 1: a bar was missed.
    """
    settings = make_settings(
        PicVllmSettings,
        model=model,
        passages=passages,
        config=config,
        num_repeats=repeats,
        prompt_tokens=tokens,
        memory_requests=requests,
        logs=logs,
    )
    # Takes long to import; the other commands do not need it.
    from nebula_bench.pic_vllm.benchmark import measure_part

    run_parts(
        part or tuple(Part),
        lambda chosen, progress: measure_part(chosen, settings, progress),
        results=results,
        docs=docs,
        mark_prefix="pic-vllm-",
    )
