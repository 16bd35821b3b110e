"""`nebula bench pic-vllm`: what clients of real vLLM workers see, on a graph that the command starts itself."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import uvloop

from nebula_bench.pic_vllm.settings import Part, PicVllmSettings
from nebula_bench.provenance import describe_command, describe_commit, describe_machine
from nebula_bench.results import Measurement
from nebula_bench.serving.document import update_document
from nebula_cli.bench_progress import BenchProgress
from nebula_cli.checked_settings import make_settings
from nebula_cli.results_file import write_measurements

if TYPE_CHECKING:
    from nebula_bench.pic_vllm.benchmark import MeasuredPart

_MISSED_EXIT_CODE = 1
_INTERRUPTED_EXIT_CODE = 130
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

    missed: list[Measurement] = []
    try:
        with BenchProgress() as progress, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for chosen in part or tuple(Part):
                missed += _publish(runner.run(measure_part(chosen, settings, progress)), results, docs)
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED_EXIT_CODE) from None
    for one in missed:
        bar = "" if one.bar is None else f", not {one.bar.op} {one.bar.value:g}"
        print(f"nebula: {one.id} is {one.value:g}{bar}", file=sys.stderr)
    raise typer.Exit(_MISSED_EXIT_CODE if missed else 0)


def _publish(measured: "MeasuredPart", results: Path | None, docs: Path | None) -> list[Measurement]:
    """Prints and writes a part as soon as it is measured; returns what missed its bar."""
    print(f"## {measured.part}\n\n{measured.markdown}", flush=True)
    if results is not None:
        write_measurements(results, measured.measurements)
    if docs is not None:
        update_document(docs, {f"pic-vllm-{measured.part}": f"{measured.markdown}\n{_provenance()}"})
    return [one for one in measured.measurements if not one.ok]


def _provenance() -> str:
    command = describe_command("nebula", sys.argv[1:])
    return f"`{command}` at commit {describe_commit(Path(__file__).parent)}, on {describe_machine()}."
