"""The numbers of a replay that can stand in a results file, by name."""

from collections.abc import Callable
from dataclasses import dataclass

from nebula_bench.replay.summary import ReplaySummary


@dataclass(frozen=True, slots=True)
class Measure:
    unit: str
    read: Callable[[ReplaySummary], float | None]
    """None when the replay did not measure it."""


MEASURES: dict[str, Measure] = {
    "requests": Measure("requests", lambda summary: summary.num_requests),
    "errors": Measure("requests", lambda summary: summary.num_errors),
    "ttft_p50_ms": Measure("ms", lambda summary: summary.ttft_ms.p50),
    "ttft_p95_ms": Measure("ms", lambda summary: summary.ttft_ms.p95),
    "ttft_p99_ms": Measure("ms", lambda summary: summary.ttft_ms.p99),
    "hit_ratio": Measure("ratio", lambda summary: summary.hit_ratio),
    "prefix_hit_tokens": Measure("tokens", lambda summary: summary.tokens.prefix_hit),
    "local_hit_tokens": Measure("tokens", lambda summary: summary.tokens.local_hit),
    "fetched_hit_tokens": Measure("tokens", lambda summary: summary.tokens.fetched_hit),
    "helper_computed_tokens": Measure("tokens", lambda summary: summary.tokens.helper_computed),
    "recomputed_tokens": Measure("tokens", lambda summary: summary.tokens.recomputed),
    "computed_tokens": Measure("tokens", lambda summary: summary.tokens.computed),
    "invalid_hit_tokens": Measure("tokens", lambda summary: summary.tokens.invalid_hit),
    "plan_kinds": Measure("kinds", lambda summary: summary.num_source_kinds),
    "loop_lag_p99_ms": Measure("ms", lambda summary: summary.loop_lag_ms.p99),
    "send_delay_p99_ms": Measure("ms", lambda summary: summary.send_delay_ms.p99),
}
