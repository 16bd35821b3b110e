"""`nebula bench`: benchmarks that need no running deployment."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from nebula_bench.decision.settings import DecisionSettings
from nebula_cli.cell_command import cell, compare
from nebula_cli.checked_settings import make_settings
from nebula_cli.data_plane_command import data_plane
from nebula_cli.paper_command import paper
from nebula_cli.pic_vllm_command import pic_vllm
from nebula_cli.quality_command import quality
from nebula_cli.results_file import write_measurements
from nebula_cli.serving_command import serve
from nebula_cli.split_command import split
from nebula_serve.sim_model.model_folder import packaged_folder

_DEFAULTS = DecisionSettings()
_MISSED_EXIT_CODE = 1

_RESULTS = Path("benchmarks/results/serve.json")

bench = typer.Typer(help=f"Measure Nebula. Alone: the decision benchmark, with rows in {_RESULTS}.")

bench.command()(cell)
bench.command()(compare)
bench.command()(data_plane)
bench.command()(paper)
bench.command()(pic_vllm)
bench.command()(quality)
bench.command()(serve)
bench.command()(split)


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


@bench.callback(invoke_without_command=True)
def run_all(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        _run_decision(_DEFAULTS, _RESULTS, as_markdown=False)


@bench.command()
def decision(
    workers: Annotated[
        list[int] | None,
        typer.Option(help="Number of workers; several allowed.", show_default=_listed(_DEFAULTS.workers)),
    ] = None,
    tokens: Annotated[
        list[int] | None,
        typer.Option(help="Length of the prompt; several allowed.", show_default=_listed(_DEFAULTS.prompt_tokens)),
    ] = None,
    entries: Annotated[int, typer.Option(help="Prefix blocks in each index.")] = _DEFAULTS.num_entries,
    repetitions: Annotated[int, typer.Option(help="Medians of which the median is taken.")] = _DEFAULTS.num_repetitions,
    calls: Annotated[int, typer.Option(help="Calls of each kind in a repetition.")] = _DEFAULTS.num_calls,
    results: Annotated[Path | None, typer.Option(help="Write rows to this results file.", show_default=False)] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
) -> None:
    """Time the router's decision beside Dynamo's own KV router, both with the same workers and index entries.

    Starts a NATS server and mock workers of its own. Exit code 1: the bar at 16,000 tokens and 8 workers is missed.
    """
    settings = make_settings(
        DecisionSettings,
        workers=workers or _DEFAULTS.workers,
        prompt_tokens=tokens or _DEFAULTS.prompt_tokens,
        num_entries=entries,
        num_repetitions=repetitions,
        num_calls=calls,
    )
    _run_decision(settings, results, as_markdown=markdown)


def _run_decision(settings: DecisionSettings, results: Path | None, *, as_markdown: bool) -> None:
    # Router and worker take long to import; the other commands need neither.
    from nebula_bench.decision.benchmark import measure_all
    from nebula_bench.decision.report import decision_measurements, render_points, to_markdown

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        points = runner.run(measure_all(settings, packaged_folder()))
    if as_markdown:
        print(to_markdown(points), end="")
    else:
        Console().print(render_points(points))
    measurements = decision_measurements(points)
    if results is not None:
        write_measurements(results, measurements)
    raise typer.Exit(0 if all(one.ok for one in measurements) else _MISSED_EXIT_CODE)
