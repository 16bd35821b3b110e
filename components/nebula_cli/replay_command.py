"""`nebula replay`: a workload trace against a running frontend."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nebula_bench.errors import FrontendError
from nebula_bench.replay.frontend_client import FrontendClient
from nebula_bench.replay.outcome import RequestOutcome
from nebula_bench.replay.report import render_summary, to_json
from nebula_bench.replay.runner import Replay
from nebula_bench.replay.settings import Marks, ReplaySettings
from nebula_bench.replay.summary import ReplaySummary, summarize
from nebula_bench.results import Measurement
from nebula_bench.workload import TraceRequest, read_trace
from nebula_cli.checked_settings import make_settings
from nebula_cli.deployment import find_deployment
from nebula_cli.errors import CliError
from nebula_cli.results_file import write_measurements
from nebula_cli.row_option import ROW_FORMAT, RowRequest, measure_rows, parse_row

_DEFAULT_URL = "http://127.0.0.1:8000"
_DEFAULTS = ReplaySettings(url=_DEFAULT_URL, rate_per_s=1.0)
_FAILED_EXIT_CODE = 1
_INTERRUPTED_EXIT_CODE = 130


def replay(
    trace: Annotated[Path, typer.Option(help="Trace file, .jsonl or .jsonl.gz.")],
    rate: Annotated[float, typer.Option(help="Mean arrivals a second (Poisson).")],
    url: Annotated[
        str | None,
        typer.Option(help="The frontend's URL.", show_default=f"of the graph that runs here, or {_DEFAULT_URL}"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model to ask for.", show_default="the only one served")] = None,
    seed: Annotated[int, typer.Option(help="Of the arrival times.")] = _DEFAULTS.seed,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N requests of the trace.")] = None,
    warmup: Annotated[
        int, typer.Option(help="The first N of them do not count in the statistics.")
    ] = _DEFAULTS.warmup_requests,
    max_tokens: Annotated[int, typer.Option(help="Output tokens of each request.")] = _DEFAULTS.max_tokens,
    concurrency_limit: Annotated[int | None, typer.Option(help="Most requests in flight.", show_default="none")] = None,
    timeout_s: Annotated[float, typer.Option(help="After this long a request has failed.")] = _DEFAULTS.timeout_s,
    time_scale: Annotated[
        float, typer.Option(help="The workers' sim.time_scale: stretches arrivals, divides reported times.")
    ] = _DEFAULTS.time_scale,
    marks: Annotated[Marks, typer.Option(help="How the router learns where segments lie.")] = _DEFAULTS.marks,
    annotation: Annotated[
        list[str] | None, typer.Option(help="Sent with every request, such as nebula.pic=off; several allowed.")
    ] = None,
    token_range: Annotated[
        tuple[int, int], typer.Option(help="Pseudo tokens: first id, and one more than the last.", metavar="FIRST END")
    ] = (_DEFAULTS.first_token_id, _DEFAULTS.end_token_id),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything measured to this file.")] = None,
    row: Annotated[
        list[str] | None, typer.Option(help=f"Put a number into the results file: {ROW_FORMAT}; several allowed.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Results file for --row.")] = Path("benchmarks/results/serve.json"),
    graph: Annotated[str | None, typer.Option(help="Which graph, where several run here.")] = None,
    working_dir: Annotated[Path, typer.Option(help="Working directory of `dynamo serve`.")] = Path(),
) -> None:
    """Replay a workload trace against the frontend and report what its clients saw.

    Prompts are deterministic pseudo tokens, so that equal segments are equal tokens. Exit code 0: every request was
    answered and every bar met; 1: not so; 2: wrong usage, or no frontend; 130: interrupted.
    """
    rows = tuple(map(parse_row, row or ()))
    settings = make_settings(
        ReplaySettings,
        url=url or _find_url(graph, working_dir),
        model=model,
        rate_per_s=rate,
        seed=seed,
        warmup_requests=warmup,
        max_tokens=max_tokens,
        concurrency_limit=concurrency_limit,
        timeout_s=timeout_s,
        time_scale=time_scale,
        marks=marks,
        annotations=annotation or (),
        first_token_id=token_range[0],
        end_token_id=token_range[1],
    )
    requests = read_trace(trace, limit)
    if warmup >= len(requests):
        raise CliError(f"--warmup {warmup} leaves none of {len(requests)} requests to measure")
    finished = _run(requests, settings)
    summary = summarize(finished.record, settings)
    console = Console()
    console.print(render_summary(summary))
    if json_file is not None:
        _write_file(json_file, to_json(summary, finished.record.outcomes, settings, trace.name))
    measured = () if summary.is_interrupted else _write_rows(rows, summary, results)
    raise typer.Exit(_exit_code(summary, measured))


def _find_url(graph: str | None, working_dir: Path) -> str:
    deployment = find_deployment(working_dir, graph)
    return _DEFAULT_URL if deployment is None or deployment.url is None else deployment.url


def _run(requests: tuple[TraceRequest, ...], settings: ReplaySettings) -> Replay:
    """The replay, finished or interrupted.

    Raises:
        FrontendError: no frontend at the URL, or it is not clear which of its models to ask for.
    """
    started: list[Replay] = []
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_replay(requests, settings, started))
        except KeyboardInterrupt:
            if not started:
                raise
    return started[0]


async def _replay(requests: tuple[TraceRequest, ...], settings: ReplaySettings, started: list[Replay]) -> None:
    async with FrontendClient(settings.url) as client:
        model = _choose_model(await client.fetch_models(), settings)
        with _progress() as progress:
            bar = progress.add_task("", total=len(requests), errors=0)
            errors = 0

            def advance(outcome: RequestOutcome) -> None:
                nonlocal errors
                errors += not outcome.is_ok
                progress.update(bar, advance=1, errors=errors)

            started.append(Replay(requests, settings, client, model, advance))
            await started[0].run()


def _progress() -> Progress:
    """On the error stream, and on a terminal only; drawn seldom, for it shares the cores with what is measured."""
    console = Console(stderr=True)
    columns = (TextColumn("replay"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[errors]} errors"))
    return Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=4,
        transient=True,
        disable=not console.is_terminal,
    )


def _choose_model(served: tuple[str, ...], settings: ReplaySettings) -> str:
    if settings.model is not None:
        if settings.model not in served:
            raise FrontendError(f"{settings.url} does not serve {settings.model!r}, but {', '.join(served) or 'none'}")
        return settings.model
    if len(served) != 1:
        listed = f"these models: {', '.join(served)}; choose one with --model" if served else "no model yet"
        raise FrontendError(f"{settings.url} serves {listed}")
    return served[0]


def _write_file(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise CliError(f"--json {path}: {error.strerror}") from error


def _write_rows(rows: tuple[RowRequest, ...], summary: ReplaySummary, results: Path) -> tuple[Measurement, ...]:
    measured = measure_rows(rows, summary)
    if measured:
        write_measurements(results, measured)
    return measured


def _exit_code(summary: ReplaySummary, measured: tuple[Measurement, ...]) -> int:
    if summary.is_interrupted:
        return _INTERRUPTED_EXIT_CODE
    is_good = summary.num_errors == 0 and all(one.ok for one in measured)
    return 0 if is_good else _FAILED_EXIT_CODE
