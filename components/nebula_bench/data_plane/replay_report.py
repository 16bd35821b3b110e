"""The live replays as rows of a results file, and as Markdown."""

from collections.abc import Callable, Iterator, Sequence

from nebula_bench.data_plane.replay_run import AccountingReplays, AccountingRun, Compared, ReplayedTwice
from nebula_bench.data_plane.replay_settings import LiveReplaySettings
from nebula_bench.replay.summary import Quantiles
from nebula_bench.results import Bar, Measurement
from nebula_bench.serving.markdown_table import MISSING, markdown_table, number

_INVALID_BAR = Bar(">=", 0.98)
_REPEATED_BAR = Bar(">=", 0.95)
_WORTH_COUNTING = Bar(">=", 0.01)
"""A view that errs less than this is nothing to be better than."""
_HIT_GAP_BAR = Bar("<=", 0.03)
_TTFT_GAP_BAR = Bar("<=", 0.15)
_NO_ERRORS = Bar("==", 0)

_Cell = Callable[[AccountingRun], str]

_NOTE = """\
An *invalid hit* was planned as a hit and was not there when it was wanted, as the worker's receipt says. *Repeated* is
what was computed although a copy was stored or on its way when the request was placed and the router did not know;
*on purpose*, although it knew. Both are judged afterwards from the decisions and the stores' events that the graph
published, and from the receipts; in virtual time by the same rule. Phases are means: *queue*, *wait* for segments of
other workers and *compute* by the receipt, *outside* everything that is not the prefill worker.
"""


def reduction(ours: float, other: float) -> float:
    """By how much less we err, as a share of the other's error; 0 where that makes none."""
    return 1 - ours / other if other else 0.0


def replay_measurements(found: AccountingReplays, settings: LiveReplaySettings) -> tuple[Measurement, ...]:
    return (*_error_rows(found), *_gap_rows(found.invalid.merged), *_condition_rows(found, settings), *_lag_rows(found))


def _error_rows(found: AccountingReplays) -> Iterator[Measurement]:
    invalid, repeated = found.invalid, found.repeated
    ours, other = invalid.merged.live.invalid_ratio, invalid.other.live.invalid_ratio
    yield _ratio("live_invalid_reduction", reduction(ours, other), _INVALID_BAR)
    yield _ratio("live_invalid_merged_ratio", ours)
    yield _ratio("live_invalid_optimistic_ratio", other, _WORTH_COUNTING)
    ours, other = repeated.merged.live.repeated_ratio, repeated.other.live.repeated_ratio
    yield _ratio("live_repeated_reduction", reduction(ours, other), _REPEATED_BAR)
    yield _ratio("live_repeated_merged_ratio", ours)
    yield _ratio("live_repeated_events_ratio", other, _WORTH_COUNTING)


def _gap_rows(replayed: ReplayedTwice) -> Iterator[Measurement]:
    live, virtual = replayed.live, replayed.virtual
    yield _ratio("live_virtual_hit_gap", abs(live.hit_ratio - virtual.hit_ratio), _HIT_GAP_BAR)
    live_ms, virtual_ms = live.ttft_ms.p50, virtual.ttft_ms.p50
    if live_ms is not None and virtual_ms:
        yield _ratio("live_virtual_ttft_gap", abs(live_ms / virtual_ms - 1), _TTFT_GAP_BAR)
        yield Measurement(id="live_ttft_p50_ms", value=live_ms, unit="ms")
        yield Measurement(id="live_virtual_ttft_p50_ms", value=virtual_ms, unit="ms")
    yield _ratio("live_hit_ratio", live.hit_ratio)
    yield _ratio("live_virtual_hit_ratio", virtual.hit_ratio)


def _condition_rows(found: AccountingReplays, settings: LiveReplaySettings) -> Iterator[Measurement]:
    errors = sum(run.live.num_errors for run in found.runs)
    yield Measurement(id="live_replay_errors", value=errors, unit="requests", bar=_NO_ERRORS)
    yield Measurement(id="live_time_scale", value=settings.time_scale, unit="ratio")
    for name, scene in (("invalid", settings.invalid), ("repeated", settings.repeated)):
        yield Measurement(id=f"live_{name}_store_tokens", value=scene.store_capacity_tokens, unit="tokens")
        yield Measurement(id=f"live_{name}_event_delay_s", value=scene.event_delay_s, unit="s")


def _lag_rows(found: AccountingReplays) -> Iterator[Measurement]:
    """The largest of all runs, in real milliseconds."""
    client = [run.graph.summary.loop_lag_ms for run in found.runs]
    lags = {
        "live_client_lag_p50_ms": [one.p50 for one in client],
        "live_client_lag_p99_ms": [one.p99 for one in client],
        "live_step_lag_p50_ms": [run.graph.step_lag_ms(0.5) for run in found.runs],
        "live_step_lag_p99_ms": [run.graph.step_lag_ms(0.99) for run in found.runs],
    }
    for name, values in lags.items():
        known = [value for value in values if value is not None]
        if known:
            yield Measurement(id=name, value=max(known), unit="ms")


def _ratio(name: str, value: float, bar: Bar | None = None) -> Measurement:
    return Measurement(id=name, value=value, unit="ratio", bar=bar)


# ---- Markdown ----


def replay_markdown(found: AccountingReplays, settings: LiveReplaySettings) -> str:
    trace_name = settings.trace.name if settings.trace else MISSING
    intro = (
        f"The first {settings.num_requests:,} requests of `{trace_name}` at {settings.rate_per_s:g} a second on "
        f"`graphs:nebula` with `{settings.config}`, {settings.max_tokens} output tokens each, time scale "
        f"{settings.time_scale:g}, caches empty at the start; all times but the lags are simulated ones. Beside each "
        "live run the same one in virtual time.\n"
    )
    return "\n".join(
        (
            intro,
            _pair_markdown("Invalid hits", found.invalid),
            _pair_markdown("Repeated computation", found.repeated),
            _NOTE,
        )
    )


def _pair_markdown(title: str, pair: Compared) -> str:
    runs = (pair.merged, pair.other)
    header = [title, *(name for run in runs for name in (f"`{run.accounting}`", "virtual"))]
    rows = [[name, *(cell(one) for run in runs for one in (run.live, run.virtual))] for name, cell in _cells().items()]
    rows += [_lag_row("client's loop lag, p50 / p99, real ms", runs, _client_lag)]
    rows += [_lag_row("workers' step lag, p50 / p99, real ms", runs, _step_lag)]
    scene = pair.scene
    setting = (
        f"Stores of {scene.store_capacity_tokens:,} tokens a worker, events {scene.event_delay_s * 1e3:g} ms late:\n"
    )
    return "\n".join((setting, markdown_table(header, rows)))


def _cells() -> dict[str, _Cell]:
    return {
        "TTFT p50 / p95 / p99, ms": lambda run: _quantiles(run.ttft_ms),
        "hit ratio": lambda run: f"{run.hit_ratio:.2%}",
        "of the prompts' tokens: invalid hits": lambda run: f"{run.invalid_ratio:.3%}",
        "repeated": lambda run: f"{run.repeated_ratio:.3%}",
        "computed again on purpose": lambda run: f"{run.on_purpose_ratio:.3%}",
        "queue / wait / compute / outside, ms": _phases,
        "errors": lambda run: str(run.num_errors),
    }


def _phases(run: AccountingRun) -> str:
    phases = run.phases_ms
    return " / ".join(number(value, 1) for value in (phases.queue, phases.wait, phases.compute, phases.outside))


def _lag_row(name: str, runs: Sequence[ReplayedTwice], cell: Callable[[ReplayedTwice], str]) -> list[str]:
    return [name, *(text for run in runs for text in (cell(run), MISSING))]


def _client_lag(run: ReplayedTwice) -> str:
    lag = run.graph.summary.loop_lag_ms
    return f"{number(lag.p50, 2)} / {number(lag.p99, 2)}"


def _step_lag(run: ReplayedTwice) -> str:
    return f"{number(run.graph.step_lag_ms(0.5), 2)} / {number(run.graph.step_lag_ms(0.99), 2)}"


def _quantiles(quantiles: Quantiles) -> str:
    return " / ".join(number(value, 1) for value in (quantiles.p50, quantiles.p95, quantiles.p99))
