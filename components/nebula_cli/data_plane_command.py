"""`nebula bench data-plane`: what moving segments between workers costs and brings."""

from pathlib import Path
from typing import Annotated

import typer

from nebula_bench.data_plane.parallel_settings import ParallelSettings
from nebula_bench.data_plane.settings import DataPlaneBenchSettings, DataPlanePart, ThroughputSettings
from nebula_cli.checked_settings import make_settings
from nebula_cli.parts_run import run_parts
from nebula_cli.quiet_logs import quiet_logs

_DEFAULTS = DataPlaneBenchSettings()
_THROUGHPUT = "Part throughput"
_PARALLEL = "Part parallel"


def data_plane(
    part: Annotated[
        list[DataPlanePart] | None, typer.Option(help="Only this part; several allowed.", show_default="all")
    ] = None,
    transport: Annotated[
        list[str] | None,
        typer.Option(help="tcp or nixl; several allowed.", show_default="tcp, nixl", rich_help_panel=_THROUGHPUT),
    ] = None,
    segments: Annotated[
        int, typer.Option(help="Segments of one transfer.", rich_help_panel=_THROUGHPUT)
    ] = _DEFAULTS.throughput.num_segments,
    tokens: Annotated[
        int, typer.Option(help="Tokens of each.", rich_help_panel=_THROUGHPUT)
    ] = _DEFAULTS.throughput.segment_tokens,
    repetitions: Annotated[
        int, typer.Option(help="Transfers of each kind, in turn.", rich_help_panel=_THROUGHPUT)
    ] = _DEFAULTS.throughput.num_repetitions,
    trace: Annotated[
        Path | None,
        typer.Option(help="Trace of the replays, .jsonl or .jsonl.gz.", show_default=False, rich_help_panel=_PARALLEL),
    ] = None,
    cold_prompts: Annotated[
        int, typer.Option(help="Prompts of each size on the idle cluster.", rich_help_panel=_PARALLEL)
    ] = _DEFAULTS.parallel.num_prompts,
    cold_time_scale: Annotated[
        float, typer.Option(help="Real seconds per simulated second for these.", rich_help_panel=_PARALLEL)
    ] = _DEFAULTS.parallel.idle_time_scale,
    loaded_requests: Annotated[
        int, typer.Option(help="The first N requests of the trace.", rich_help_panel=_PARALLEL)
    ] = _DEFAULTS.parallel.num_requests,
    loaded_rate: Annotated[
        float, typer.Option(help="Mean arrivals a second (Poisson).", rich_help_panel=_PARALLEL)
    ] = _DEFAULTS.parallel.rate_per_s,
    loaded_seed: Annotated[
        list[int] | None,
        typer.Option(help="Of the arrival times; several allowed.", show_default="1, 2, 3", rich_help_panel=_PARALLEL),
    ] = None,
    loaded_time_scale: Annotated[
        float, typer.Option(help="Real seconds per simulated second for the replays.", rich_help_panel=_PARALLEL)
    ] = _DEFAULTS.parallel.loaded_time_scale,
    results: Annotated[Path | None, typer.Option(help="Write rows to this results file.", show_default=False)] = None,
    docs: Annotated[
        Path | None, typer.Option(help="Put the tables into this document, between its marks.", show_default=False)
    ] = None,
    logs: Annotated[Path | None, typer.Option(help="Keep the graphs' logs in this folder.", show_default=False)] = None,
) -> None:
    """Measure what segments that move between workers cost and bring.

    throughput: copies between two processes over each transport, in turn with a plain socket copy of as many bytes.

    parallel: prompts of 8 new passages on an idle graph of simulated workers, with helpers and on one worker, over fast
    and slow links; and a trace under full load with parallel prefill and without. Some fifteen minutes.

    Exit code 1: a bar was missed.
    """
    settings = DataPlaneBenchSettings(
        throughput=make_settings(
            ThroughputSettings,
            transports=tuple(transport) if transport else _DEFAULTS.throughput.transports,
            num_segments=segments,
            segment_tokens=tokens,
            num_repetitions=repetitions,
        ),
        parallel=make_settings(
            ParallelSettings,
            trace=trace,
            num_prompts=cold_prompts,
            idle_time_scale=cold_time_scale,
            num_requests=loaded_requests,
            rate_per_s=loaded_rate,
            seeds=tuple(loaded_seed) if loaded_seed else _DEFAULTS.parallel.seeds,
            loaded_time_scale=loaded_time_scale,
        ),
        logs=logs,
    )
    # The worker takes long to import; the other commands do not need it.
    from nebula_bench.data_plane.benchmark import measure_part

    quiet_logs()
    run_parts(
        part or tuple(DataPlanePart),
        lambda chosen, progress: measure_part(chosen, settings, progress),
        results=results,
        docs=docs,
        mark_prefix="data-plane-",
    )
