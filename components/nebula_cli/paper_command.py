"""`nebula bench paper`: every figure that Nebula is held to, in one command."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from nebula_bench.paper.part import Part
from nebula_bench.provenance import describe_commit
from nebula_bench.results import Measurement
from nebula_cli.checked_settings import make_settings
from nebula_cli.origin import origin_sentence
from nebula_cli.results_file import write_measurements

_MISSED_EXIT_CODE = 1


def paper(
    part: Annotated[list[Part] | None, typer.Option(help="Only these parts.", show_default="all")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Only these models.", show_default="four")] = None,
    workload: Annotated[list[str] | None, typer.Option(help="Only these workloads.", show_default="four")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only these seeds.", show_default="1, 2, 3")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only the first N requests of each trace.", show_default="all")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Cells that run side by side.")] = os.cpu_count() or 1,
    data: Annotated[Path, typer.Option(help="Folder with WORKLOAD.trace.jsonl.gz.")] = Path("../shared/data"),
    results: Annotated[Path | None, typer.Option(help="Write rows to this results file.", show_default="none")] = None,
    report: Annotated[Path, typer.Option(help="Folder for the parts' pages and plots.")] = Path("benchmarks/report"),
    memory: Annotated[
        Path, typer.Option(help="Folder where results are kept, so that the same commit can go on.")
    ] = Path("benchmarks/out/paper"),
) -> None:
    """Compare Nebula with the paper and its baselines in virtual time: rows, Markdown and plots.

    Exit code 0: every bar of the parts that were run is met; 1: not so. Bars are those of whole traces and all seeds:
    with --limit or fewer seeds the figures are a quick look.
    """
    from nebula_bench.paper.comparison import Comparison
    from nebula_bench.paper.grid import MODELS, SEEDS, WORKLOADS, Scope
    from nebula_bench.paper.markdown import rows_markdown
    from nebula_bench.paper.report import write_report

    scope = make_settings(
        Scope,
        data=data,
        models=tuple(model or MODELS),
        workloads=tuple(workload or WORKLOADS),
        seeds=tuple(seed or SEEDS),
        limit=limit,
    )
    commit = describe_commit(Path(__file__).parent)
    with _progress() as progress:
        bar = progress.add_task("cells", total=None)
        comparison = Comparison(
            scope,
            num_processes=processes,
            commit=commit,
            # What uncommitted code has computed may not be true any more.
            memory=None if commit.endswith("-dirty") else memory,
            on_finished=lambda _: progress.advance(bar),
        )
        rows: list[Measurement] = []
        for one in (each for each in Part if part is None or each in part):
            findings = comparison.run(one)
            rows += findings.rows
            write_report(findings, report, origin_sentence())
            if results is not None:
                write_measurements(results, findings.rows)
    Console().print(Markdown(rows_markdown(rows)))
    raise typer.Exit(0 if all(row.ok for row in rows) else _MISSED_EXIT_CODE)


def _progress() -> Progress:
    """On the error stream, and on a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} done"))
    return Progress(
        *columns,
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        refresh_per_second=2,
        transient=True,
        disable=not console.is_terminal,
    )
