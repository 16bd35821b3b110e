"""`nebula bench cell` and `compare`: the virtual-time cluster on one workload at one rate."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nebula_cli.checked_settings import make_settings
from nebula_cli.errors import CliError

_DATA = Path("../shared/data")

Workload = Annotated[str, typer.Option(help="Name of the trace, such as ragpulse.")]
Rate = Annotated[float, typer.Option(help="Mean arrivals a second (Poisson).")]
Model = Annotated[str, typer.Option(help="Model in the workers.")]
Seed = Annotated[int, typer.Option(help="Of the arrival times and of the noise.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N requests of the trace.", show_default="all")]
Warmup = Annotated[int, typer.Option(help="The first N of them do not count in the statistics.")]
OutputTokens = Annotated[int, typer.Option(help="Of each request; from 2 on a decode worker pulls the prompt.")]
ClosedLoop = Annotated[
    bool, typer.Option("--closed-loop", help="A session's next request waits for the answer to the one before.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="A setting of the cluster, such as worker.store_capacity_tokens=50000; several allowed."
    ),
]
Fusion = Annotated[
    str | None,
    typer.Option(
        help="What workers compute again of reused segments: legolink:16, cacheblend:0.15, none or full.",
        show_default="legolink:16",
    ),
]
Data = Annotated[Path, typer.Option(help="Folder with WORKLOAD.trace.jsonl.gz.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write everything measured to this file.")]


def cell(
    workload: Workload,
    rate: Rate,
    policy: Annotated[str, typer.Option(help="Who places requests.")] = "nebula",
    model: Model = "Qwen3-14B",
    seed: Seed = 1,
    limit: Limit = None,
    warmup: Warmup = 0,
    output_tokens: OutputTokens = 1,
    closed_loop: ClosedLoop = False,
    fusion: Fusion = None,
    overrides: Overrides = None,
    data: Data = _DATA,
    json_file: JsonFile = None,
) -> None:
    """Run one policy on one workload in virtual time."""
    settings = _cell_values(
        workload, rate, model, limit, _with_fusion(overrides, fusion), seed, warmup, output_tokens, closed_loop
    )
    _run([policy], settings, data, json_file)


def compare(
    workload: Workload,
    rate: Rate,
    policy: Annotated[
        list[str] | None, typer.Option(help="Policies to compare; several allowed.", show_default="all")
    ] = None,
    model: Model = "Qwen3-14B",
    seed: Seed = 1,
    limit: Limit = None,
    warmup: Warmup = 0,
    output_tokens: OutputTokens = 1,
    closed_loop: ClosedLoop = False,
    fusion: Fusion = None,
    overrides: Overrides = None,
    data: Data = _DATA,
    json_file: JsonFile = None,
) -> None:
    """Run several policies on one workload in virtual time, all with the same arrivals and noise."""
    from nebula_bench.policies.catalogue import POLICIES

    settings = _cell_values(
        workload, rate, model, limit, _with_fusion(overrides, fusion), seed, warmup, output_tokens, closed_loop
    )
    _run(policy or list(POLICIES), settings, data, json_file)


def _run(policies: Sequence[str], values: dict[str, object], data: Path, json_file: Path | None) -> None:
    # The cores of router and worker take long to import; other commands need neither.
    from nebula_bench.cluster.cell import CellSettings, read_workload, run_cell
    from nebula_bench.cluster.report import WIDTH, render_cells

    cells = [make_settings(CellSettings, **values, policy=policy) for policy in policies]
    trace = read_workload(data, cells[0].workload, cells[0].limit)
    if cells[0].load.warmup_requests >= len(trace):
        raise CliError(f"--warmup leaves none of {len(trace)} requests to measure")
    results = []
    with _progress() as progress:
        for settings in cells:
            results.append(run_cell(settings, trace, _advance(progress, settings.policy, len(trace))))
    Console(width=max(WIDTH, Console().width)).print(render_cells(results))
    if json_file is not None:
        _write_json(json_file, msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    if any(result.summary.num_errors for result in results):
        raise typer.Exit(1)


def _cell_values(
    workload: str,
    rate: float,
    model: str,
    limit: int | None,
    overrides: Sequence[str] | None,
    seed: int,
    warmup: int,
    output_tokens: int,
    closed_loop: bool,
) -> dict[str, object]:
    """
    Raises:
        CellError: no such model.
        CliError: a setting is unknown or out of its bounds.
    """
    from nebula_bench.cluster.cell import for_model
    from nebula_bench.cluster.settings import ClusterSettings

    defaults = for_model(ClusterSettings(), model).model_dump()
    for override in overrides or ():
        _override(defaults, override)
    cluster = make_settings(ClusterSettings, **defaults)
    load = {
        "rate_per_s": rate,
        "seed": seed,
        "warmup_requests": warmup,
        "output_tokens": output_tokens,
        "closed_loop": closed_loop,
    }
    return {"workload": workload, "load": load, "limit": limit, "cluster": cluster}


def _with_fusion(overrides: Sequence[str] | None, fusion: str | None) -> list[str]:
    """`--fusion` is short for a setting that is changed often; a `--set` of the same goes before it."""
    return [*([] if fusion is None else [f"worker.fusion={fusion}"]), *(overrides or ())]


def _override(values: dict[str, object], override: str) -> None:
    """Puts `a.b=value` into nested values; the value is JSON where it can be read as such, else text."""
    key, equals, text = override.partition("=")
    if not equals:
        raise CliError(f"--set {override}: the form is key=value")
    *path, last = key.split(".")
    for name in path:
        inner = values.get(name)
        if not isinstance(inner, dict):
            raise CliError(f"--set {override}: there is no group {name!r}")
        values = inner
    try:
        values[last] = json.loads(text)
    except json.JSONDecodeError:
        values[last] = text


def _advance(progress: Progress, name: str, total: int) -> Callable[[object], None]:
    bar = progress.add_task(name, total=total)
    return lambda _: progress.advance(bar)


def _progress() -> Progress:
    """On the error stream, and on a terminal only."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=4,
        transient=True,
        disable=not console.is_terminal,
    )


def _write_json(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise CliError(f"--json {path}: {error.strerror}") from error
