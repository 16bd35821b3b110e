"""Parallel prefill as Markdown and as rows."""

import statistics
from collections.abc import Iterable, Iterator

from nebula_bench.data_plane.parallel import LoadedPair, ParallelPrefill
from nebula_bench.data_plane.parallel_prompts import (
    ALL_LINKS,
    FAST_LINKS,
    FAST_WHOLE_LINKS,
    NUM_PASSAGES,
    PASSAGE_TOKENS,
    ROW_PASSAGE_TOKENS,
    SLOW_LINKS,
    SLOW_WHOLE_LINKS,
    Links,
)
from nebula_bench.data_plane.parallel_settings import ParallelSettings
from nebula_bench.results import Bar, Measurement
from nebula_bench.serving.graph_replay import GraphReplay
from nebula_bench.serving.markdown_table import MISSING, markdown_table, number

_TTFT_BAR = Bar("<=", 0.6)
_NO_HELPERS = Bar("==", 0)
_GAINS = Bar("<=", 1.0)
_LOADED_BAR = Bar("<=", 1.02)
_MS_PER_S = 1e3
_BYTES_PER_GB = 1e9


def parallel_measurements(found: ParallelPrefill) -> tuple[Measurement, ...]:
    return (*_idle_measurements(found), *_loaded_measurements(found))


def parallel_markdown(found: ParallelPrefill, settings: ParallelSettings) -> str:
    return "\n".join((_idle_markdown(found, settings), _loaded_markdown(found, settings)))


# ---- cold prompts ----


def ttft_ratio(found: ParallelPrefill, links: Links, passage_tokens: int, *, virtual: bool = False) -> float:
    """Median TTFT with helpers over that on one worker."""
    runs = found.idle_virtual if virtual else found.idle
    return runs[links].ttft_s(passage_tokens) / runs[None].ttft_s(passage_tokens)


def _idle_measurements(found: ParallelPrefill) -> Iterator[Measurement]:
    def ratio(name: str, links: Links, bar: Bar | None = None, size: int = ROW_PASSAGE_TOKENS) -> Measurement:
        return Measurement(id=name, value=ttft_ratio(found, links, size), unit="ratio", bar=bar)

    def helpers(name: str, links: Links, bar: Bar | None = None) -> Measurement:
        total = sum(found.idle[links].num_helpers(size) for size in PASSAGE_TOKENS)
        return Measurement(id=name, value=total, unit="helpers", bar=bar)

    yield ratio("parallel_ttft_ratio", FAST_LINKS, _TTFT_BAR)
    for size in PASSAGE_TOKENS:
        if size != ROW_PASSAGE_TOKENS:
            yield ratio(f"parallel_ttft_ratio_{size}", FAST_LINKS, size=size)
    yield ratio("parallel_whole_ttft_ratio", FAST_WHOLE_LINKS)
    yield helpers("parallel_slow_link_helpers", SLOW_WHOLE_LINKS, _NO_HELPERS)
    # Layer by layer the same links are worth using, and whoever uses helpers has to gain by it.
    yield helpers("parallel_slow_link_layered_helpers", SLOW_LINKS)
    yield ratio("parallel_slow_link_layered_ttft_ratio", SLOW_LINKS, _GAINS)


def _idle_markdown(found: ParallelPrefill, settings: ParallelSettings) -> str:
    intro = (
        f"{settings.num_prompts} prompts of each size, {NUM_PASSAGES} passages that no worker has seen and a question, "
        f"one at a time on an idle cluster; median TTFT at the client, time scale {settings.idle_time_scale:g}.\n"
    )
    header = (
        "passages",
        "links",
        "a copy is used",
        "TTFT, ms",
        "on one worker, ms",
        "ratio",
        "in virtual time",
        "helpers a prompt",
    )
    rows = [_idle_row(found, links, size) for links in ALL_LINKS for size in PASSAGE_TOKENS]
    return "\n".join((intro, markdown_table(header, rows, num_text_columns=3)))


def _idle_row(found: ParallelPrefill, links: Links, size: int) -> tuple[str, ...]:
    run = found.idle[links]
    num_prompts = sum(answer.passage_tokens == size for answer in run.answers)
    return (
        f"{NUM_PASSAGES} x {size:,}",
        f"{links.bytes_per_s / _BYTES_PER_GB:g} GB/s",
        "as a whole" if links.stream_pieces == 1 else "layer by layer",
        number(run.ttft_s(size) * _MS_PER_S),
        number(found.idle[None].ttft_s(size) * _MS_PER_S),
        number(ttft_ratio(found, links, size), 2),
        number(ttft_ratio(found, links, size, virtual=True), 2),
        number(run.num_helpers(size) / num_prompts, 1),
    )


# ---- under full load ----


def live_ratio(pair: LoadedPair) -> float | None:
    """Median TTFT with parallel prefill over that without; None where one of them answered nothing."""
    return _ratio(pair.parallel.summary.ttft_ms.p50, pair.alone.summary.ttft_ms.p50)


def virtual_ratio(pair: LoadedPair) -> float | None:
    return _ratio(pair.virtual.parallel.ttft_ms.p50, pair.virtual.alone.ttft_ms.p50)


def _ratio(parallel_ms: float | None, alone_ms: float | None) -> float | None:
    return None if parallel_ms is None or not alone_ms else parallel_ms / alone_ms


def _loaded_measurements(found: ParallelPrefill) -> Iterator[Measurement]:
    for name, ratio in (("parallel_loaded_ratio", live_ratio), ("parallel_loaded_ratio_virtual", virtual_ratio)):
        known = [value for pair in found.loaded if (value := ratio(pair)) is not None]
        if known:
            yield Measurement(id=name, value=statistics.median(known), unit="ratio", bar=_LOADED_BAR)
    replays = [replay for pair in found.loaded for replay in (pair.parallel, pair.alone)]
    errors = sum(replay.summary.num_errors for replay in replays)
    yield Measurement(id="parallel_loaded_errors", value=errors, unit="requests", bar=Bar("==", 0))


def _loaded_markdown(found: ParallelPrefill, settings: ParallelSettings) -> str:
    trace = settings.trace.name if settings.trace else MISSING
    intro = (
        f"The first {settings.num_requests} requests of `{trace}` at {settings.rate_per_s:g} a second, "
        f"one output token each, time scale {settings.loaded_time_scale:g}, caches empty at the start; the same "
        "arrivals with parallel prefill and without. Lags are real milliseconds, the larger of both replays.\n"
    )
    header = (
        "seed",
        "TTFT with, p50 / p95, ms",
        "without",
        "ratio of p50",
        "in virtual time",
        "workers busy there, with / without",
        "computed by helpers",
        "client's loop lag p50 / p99, ms",
        "workers' step lag p50 / p99, ms",
    )
    return "\n".join((intro, markdown_table(header, map(_loaded_row, found.loaded))))


def _loaded_row(pair: LoadedPair) -> tuple[str, ...]:
    tokens, virtual = pair.parallel.summary.tokens, pair.virtual
    replays = (pair.parallel, pair.alone)
    loop_lags = [replay.summary.loop_lag_ms for replay in replays]
    return (
        str(pair.seed),
        _ttfts(pair.parallel),
        _ttfts(pair.alone),
        number(live_ratio(pair), 3),
        number(virtual_ratio(pair), 3),
        f"{virtual.parallel.busy_ratio:.0%} / {virtual.alone.busy_ratio:.0%}",
        f"{tokens.helper_computed / tokens.prompt:.1%}" if tokens.prompt else MISSING,
        f"{_largest(lag.p50 for lag in loop_lags)} / {_largest(lag.p99 for lag in loop_lags)}",
        " / ".join(_largest(replay.step_lag_ms(share) for replay in replays) for share in (0.5, 0.99)),
    )


def _largest(values_ms: Iterable[float | None]) -> str:
    return number(max((value for value in values_ms if value is not None), default=None), 1)


def _ttfts(replay: GraphReplay) -> str:
    ttft_ms = replay.summary.ttft_ms
    return f"{number(ttft_ms.p50)} / {number(ttft_ms.p95)}"
