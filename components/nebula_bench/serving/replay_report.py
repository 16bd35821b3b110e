"""The replays of both graphs side by side, as Markdown and as rows of a results file."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nebula_bench.replay.summary import Quantiles
from nebula_bench.results import Bar, Measurement
from nebula_bench.serving.graph_replay import GraphReplay
from nebula_bench.serving.markdown_table import MISSING, markdown_table, number
from nebula_bench.serving.settings import ServingSettings
from nebula_protocol.plan import Source

_NO_ERRORS = Bar("==", 0)
_EVERY_KIND = Bar("==", len(Source))
_LAG_LIMIT = 0.1
"""The machine keeps time when its lags are at most this share of the TTFT at the same quantile."""

_TTFT_NOTE = """\
TTFT is not the same moment on both sides: Nebula sends the prefill worker's token to the client at once, while in
Dynamo's own disaggregated path the client's first token is decode's, after the transfer of the prompt's KV. "Prefill
done" compares like with like: from the request's arrival at its prefill worker to the end of its prefill, by the
worker's receipt.
"""

_Cell = Callable[[GraphReplay], str]


def replay_markdown(replays: Sequence[GraphReplay], settings: ServingSettings) -> str:
    header = ["", *(f"`graphs:{replay.graph}`" for replay in replays)]
    rows = [[name, *map(cell, replays)] for name, cell in _cells().items()]
    trace_name = settings.trace.name if settings.trace else MISSING
    intro = (
        f"The first {settings.num_requests} requests of `{trace_name}` at {settings.rate_per_s:g} a second, "
        f"{settings.max_tokens} output tokens each, time scale {settings.time_scale:g}, caches empty at the start.\n"
    )
    return "\n".join((intro, markdown_table(header, rows), _TTFT_NOTE, _time_note(replays, settings)))


def replay_measurements(replays: Sequence[GraphReplay]) -> tuple[Measurement, ...]:
    return tuple(measurement for replay in replays for measurement in _measurements(replay))


def _measurements(replay: GraphReplay) -> Iterator[Measurement]:
    summary, name = replay.summary, replay.graph
    yield Measurement(id=f"{name}_errors", value=summary.num_errors, unit="requests", bar=_NO_ERRORS)
    yield Measurement(id=f"{name}_answers", value=replay.num_answers, unit="requests")
    if name == "nebula":
        yield Measurement(id="plan_kinds", value=summary.num_source_kinds, unit="kinds", bar=_EVERY_KIND)
    measured = {
        "ttft_p50_ms": summary.ttft_ms.p50,
        "ttft_p95_ms": summary.ttft_ms.p95,
        "prefill_p50_ms": replay.prefill_ms.p50,
        "prefill_p95_ms": replay.prefill_ms.p95,
        "hit_ratio": summary.hit_ratio,
        "client_lag_p50_ms": summary.loop_lag_ms.p50,
        "client_lag_p99_ms": summary.loop_lag_ms.p99,
        "step_lag_p50_ms": replay.step_lag_ms(0.5),
        "step_lag_p99_ms": replay.step_lag_ms(0.99),
    }
    for key, value in measured.items():
        if value is not None:
            yield Measurement(id=f"{name}_{key}", value=value, unit="ratio" if key == "hit_ratio" else "ms")


def _cells() -> dict[str, _Cell]:
    return {
        "prefill workers": lambda replay: str(replay.num_prefill_workers),
        "answers": lambda replay: str(replay.num_answers),
        "errors": lambda replay: str(replay.summary.num_errors),
        "TTFT at the client, p50 / p95 / p99, ms": lambda replay: _quantiles(replay.summary.ttft_ms),
        "prefill done at the worker, p50 / p95 / p99, ms": lambda replay: _quantiles(replay.prefill_ms),
        "hit ratio": lambda replay: _percent(replay.summary.hit_ratio),
        "of the prompts' tokens: prefix hit": _share(lambda replay: replay.summary.tokens.prefix_hit),
        "segment hit, local": _share(lambda replay: replay.summary.tokens.local_hit),
        "segment hit, fetched": _share(lambda replay: replay.summary.tokens.fetched_hit),
        "computed by helpers": _share(lambda replay: replay.summary.tokens.helper_computed),
        "computed": _share(lambda replay: replay.summary.tokens.computed),
        "recomputed by fusion": _share(lambda replay: replay.summary.tokens.recomputed),
        "source kinds done": lambda replay: str(replay.summary.num_source_kinds),
        "client's loop lag, p50 / p99, ms": lambda replay: _pair(
            replay.summary.loop_lag_ms.p50, replay.summary.loop_lag_ms.p99
        ),
        "workers' step lag, p50 / p99, ms": lambda replay: _pair(replay.step_lag_ms(0.5), replay.step_lag_ms(0.99)),
    }


def _time_note(replays: Sequence[GraphReplay], settings: ServingSettings) -> str:
    """Whether the latencies measure the graphs or the machine: typical lags and large ones, each beside its TTFT."""
    median = _LagBesideTtft.of(0.5, replays, lambda quantiles: quantiles.p50, settings.time_scale)
    tail = _LagBesideTtft.of(0.99, replays, lambda quantiles: quantiles.p99, settings.time_scale)
    if median is None or tail is None:
        return "Nothing was answered, so nothing is known about the machine.\n"
    kept = median.ratio <= _LAG_LIMIT and tail.ratio <= _LAG_LIMIT
    verdict = (
        f"The machine kept time at scale {settings.time_scale:g}"
        if kept
        else f"The machine did not keep time at scale {settings.time_scale:g} (`--time-scale` slows both graphs alike)"
    )
    return (
        f"{verdict}: the largest median lag is {median.lag_ms:.2f} ms beside a median TTFT of {median.ttft_ms:.0f} ms, "
        f"the largest p99 lag {tail.lag_ms:.1f} ms beside a p99 TTFT of {tail.ttft_ms:.0f} ms.\n"
    )


@dataclass(frozen=True, slots=True)
class _LagBesideTtft:
    """Real milliseconds: the larger of all lags, the smaller of all TTFTs."""

    lag_ms: float
    ttft_ms: float

    @property
    def ratio(self) -> float:
        return self.lag_ms / self.ttft_ms

    @classmethod
    def of(
        cls, share: float, replays: Sequence[GraphReplay], read: Callable[[Quantiles], float | None], time_scale: float
    ) -> "_LagBesideTtft | None":
        lags = [lag for one in replays for lag in (one.step_lag_ms(share), read(one.summary.loop_lag_ms))]
        ttfts = [read(one.summary.ttft_ms) for one in replays]
        known_lags = [lag for lag in lags if lag is not None]
        known_ttfts = [ttft * time_scale for ttft in ttfts if ttft is not None]
        return cls(max(known_lags), min(known_ttfts)) if known_lags and known_ttfts else None


def _share(count: Callable[[GraphReplay], int]) -> _Cell:
    def cell(replay: GraphReplay) -> str:
        prompt = replay.summary.tokens.prompt
        return _percent(count(replay) / prompt if prompt else None)

    return cell


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1%}"


def _quantiles(quantiles: Quantiles) -> str:
    return " / ".join(number(value, 1) for value in (quantiles.p50, quantiles.p95, quantiles.p99))


def _pair(low: float | None, high: float | None) -> str:
    return f"{number(low, 2)} / {number(high, 2)}"
