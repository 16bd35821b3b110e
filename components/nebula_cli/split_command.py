"""`nebula bench split`: what each way to divide the store saves, on traces through one cache."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from nebula_cli.bench_progress import BenchProgress
from nebula_cli.checked_settings import make_settings

_WORKLOADS = ("ragpulse", "quac_recon", "chatdev", "tau_retail")


def split(
    workload: Annotated[
        list[str] | None,
        typer.Option(help="Name of a trace; several allowed.", show_default=", ".join(_WORKLOADS)),
    ] = None,
    store_tokens: Annotated[
        list[int] | None,
        typer.Option(help="Capacity of each worker's store; several allowed.", show_default="12500 to 400000"),
    ] = None,
    device_tokens: Annotated[int, typer.Option(help="Device tier of each worker.")] = 16_000,
    workers: Annotated[int, typer.Option(help="Workers whose capacity the one cache has.")] = 7,
    start_ratio: Annotated[float, typer.Option(help="Share for prefix blocks at which the controller begins.")] = 0.2,
    window_requests: Annotated[int, typer.Option(help="The controller's window.")] = 32,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N requests.", show_default="all")] = None,
    data: Annotated[Path, typer.Option(help="Folder with WORKLOAD.trace.jsonl.gz.")] = Path("../shared/data"),
    as_json: Annotated[bool, typer.Option("--json", help="Print everything measured as JSON instead.")] = False,
) -> None:
    """Compare one LRU, fixed halves, the best static split and the router's controller, as a Markdown table of
    hit ratio / saved share of prefill time.

    All workers' capacity is one cache: neither time nor placement plays a part. Each run goes through the whole trace.
    """
    # The cores of router and worker take long to import; other commands need neither.
    from nebula_bench.split.cache_prompt import cache_prompts
    from nebula_bench.split.comparison import SplitRow, compare_divisions, num_runs
    from nebula_bench.split.report import to_markdown
    from nebula_bench.split.settings import SplitSettings
    from nebula_bench.workload import read_trace

    chosen = {} if store_tokens is None else {"store_tokens": store_tokens}
    settings = make_settings(
        SplitSettings,
        num_workers=workers,
        device_tokens=device_tokens,
        start_ratio=start_ratio,
        window_requests=window_requests,
        **chosen,
    )
    rows: list[SplitRow] = []
    with BenchProgress() as progress:
        for name in workload or _WORKLOADS:
            prompts = tuple(cache_prompts(read_trace(data / f"{name}.trace.jsonl.gz", limit)))
            progress.begin(name, len(settings.store_tokens) * num_runs(settings))
            for tokens in settings.store_tokens:
                rows.append(compare_divisions(name, prompts, settings, tokens, progress.advance))
    print(msgspec.json.format(msgspec.json.encode(rows), indent=1).decode() if as_json else to_markdown(rows).rstrip())
