"""`nebula bench serve`: every live figure, on graphs that the command starts and stops itself."""

from pathlib import Path
from typing import Annotated

import typer

from nebula_bench.serving.settings import Part, ServingSettings
from nebula_cli.checked_settings import make_settings
from nebula_cli.parts_run import run_parts
from nebula_cli.quiet_logs import quiet_logs

_DEFAULTS = ServingSettings()


def serve(
    trace: Annotated[
        Path | None, typer.Option(help="Trace of the replays, .jsonl or .jsonl.gz.", show_default=False)
    ] = None,
    part: Annotated[
        list[Part] | None, typer.Option(help="Only this part; several allowed.", show_default="all")
    ] = None,
    requests: Annotated[int, typer.Option(help="The first N requests of the trace.")] = _DEFAULTS.num_requests,
    rate: Annotated[float, typer.Option(help="Mean arrivals a second (Poisson).")] = _DEFAULTS.rate_per_s,
    seed: Annotated[int, typer.Option(help="Of the arrival times.")] = _DEFAULTS.seed,
    max_tokens: Annotated[int, typer.Option(help="Output tokens of each request.")] = _DEFAULTS.max_tokens,
    time_scale: Annotated[
        float, typer.Option(help="Real seconds per simulated second, for workers and arrivals of both graphs.")
    ] = _DEFAULTS.time_scale,
    nebula_config: Annotated[Path, typer.Option(help="Settings of graphs:nebula.")] = _DEFAULTS.nebula_config,
    dynamo_kv_config: Annotated[Path, typer.Option(help="Settings of graphs:dynamo_kv.")] = _DEFAULTS.dynamo_kv_config,
    kills: Annotated[
        int, typer.Option(help="Workers killed between their reply and decode's pull.")
    ] = _DEFAULTS.num_handover_kills,
    results: Annotated[Path | None, typer.Option(help="Write rows to this results file.", show_default=False)] = None,
    docs: Annotated[
        Path | None, typer.Option(help="Put the tables into this document, between its marks.", show_default=False)
    ] = None,
    logs: Annotated[Path | None, typer.Option(help="Keep the graphs' logs in this folder.", show_default=False)] = None,
) -> None:
    """Replay a trace on graphs:nebula and graphs:dynamo_kv, kill workers under load, and send wrong requests.

    Starts and stops the graphs itself, each in a folder of its own on a free port; several minutes for all parts.
    Exit code 1: a bar was missed.
    """
    settings = make_settings(
        ServingSettings,
        trace=trace,
        num_requests=requests,
        rate_per_s=rate,
        seed=seed,
        max_tokens=max_tokens,
        time_scale=time_scale,
        nebula_config=nebula_config,
        dynamo_kv_config=dynamo_kv_config,
        num_handover_kills=kills,
        logs=logs,
    )
    # Takes long to import; the other commands do not need it.
    from nebula_bench.serving.benchmark import measure_part

    quiet_logs()
    run_parts(
        part or tuple(Part),
        lambda chosen, progress: measure_part(chosen, settings, progress),
        results=results,
        docs=docs,
    )
