"""`nebula bench data-plane`: what moving segments between workers costs and brings."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from nebula_bench.data_plane.settings import DataPlanePart, ThroughputSettings
from nebula_bench.results import Measurement
from nebula_cli.bench_progress import BenchProgress
from nebula_cli.checked_settings import make_settings
from nebula_cli.errors import CliError
from nebula_cli.results_file import write_measurements

_DEFAULTS = ThroughputSettings()
_MISSED_EXIT_CODE = 1


def data_plane(
    part: Annotated[
        list[DataPlanePart] | None, typer.Option(help="Only this part; several allowed.", show_default="all")
    ] = None,
    transport: Annotated[
        list[str] | None, typer.Option(help="tcp or nixl; several allowed.", show_default="tcp, nixl")
    ] = None,
    segments: Annotated[int, typer.Option(help="Segments of one transfer.")] = _DEFAULTS.num_segments,
    tokens: Annotated[int, typer.Option(help="Tokens of each.")] = _DEFAULTS.segment_tokens,
    repetitions: Annotated[int, typer.Option(help="Transfers of each kind, in turn.")] = _DEFAULTS.num_repetitions,
    results: Annotated[Path | None, typer.Option(help="Write rows to this results file.", show_default=False)] = None,
) -> None:
    """Copy segments between two processes over each transport, in turn with a plain socket copy of as many bytes.

    On loopback. Exit code 1: a bar was missed.
    """
    settings = make_settings(
        ThroughputSettings,
        transports=tuple(transport) if transport else _DEFAULTS.transports,
        num_segments=segments,
        segment_tokens=tokens,
        num_repetitions=repetitions,
    )
    measurements: list[Measurement] = []
    for chosen in part or tuple(DataPlanePart):
        match chosen:
            case DataPlanePart.THROUGHPUT:
                measurements += _measure_throughput(settings)
    if results is not None:
        write_measurements(results, measurements)
    raise typer.Exit(0 if all(one.ok for one in measurements) else _MISSED_EXIT_CODE)


def _measure_throughput(settings: ThroughputSettings) -> tuple[Measurement, ...]:
    # The worker takes long to import; the other commands do not need it.
    from nebula_bench.data_plane.throughput import measure_throughput, throughput_measurements
    from pic_worker.errors import StartError

    with BenchProgress() as progress:
        progress.begin("transfers", settings.num_repetitions + 1)
        try:
            # As workers run.
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                throughputs = runner.run(measure_throughput(settings, progress.advance))
        except StartError as error:
            raise CliError(str(error)) from error
    measurements = throughput_measurements(throughputs)
    console = Console()
    for one in measurements:
        value = f"{one.value:.2f}" if one.unit == "ratio" else f"{one.value / 1e9:.2f} G{one.unit}"
        console.print(f"{one.id}: {value}{'' if one.ok else '  MISSED'}", highlight=False)
    return measurements
