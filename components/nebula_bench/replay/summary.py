"""What a replay showed, in numbers."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from nebula_bench.replay.outcome import RequestOutcome
from nebula_bench.replay.runner import ReplayRecord
from nebula_bench.replay.settings import ReplaySettings
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason, Receipt


class Quantiles(msgspec.Struct, frozen=True):
    """Milliseconds; None where nothing was measured."""

    p50: float | None
    p95: float | None
    p99: float | None


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the receipts. prompt = prefix_hit + local_hit + fetched_hit + helper_computed + computed."""

    prompt: int
    prefix_hit: int
    local_hit: int
    fetched_hit: int
    """From other workers, that had it or were making it for another request."""
    helper_computed: int
    """Loaded from helpers that computed it for this very request: no hit, though a receipt counts it as fetched."""
    recomputed: int
    """Of the tokens that were loaded as segments, those computed again by fusion."""
    computed: int
    """By the target."""
    invalid_hit: int
    """Planned as a hit, not there when wanted."""

    @property
    def hit_ratio(self) -> float | None:
        """Share of the prompts' tokens whose KV was found, by prefix or segment, and not made for the request."""
        hits = self.prefix_hit + self.local_hit + self.fetched_hit
        return hits / self.prompt if self.prompt else None


class SegmentCounts(msgspec.Struct, frozen=True, kw_only=True):
    planned: dict[Source, int]
    done: dict[Source, int]
    fallbacks: dict[FallbackReason, int]

    @property
    def num_kinds(self) -> int:
        """Source kinds that were carried out at least once."""
        return sum(count > 0 for count in self.done.values())


class ReplaySummary(msgspec.Struct, frozen=True, kw_only=True):
    """Latencies are in the trace's time (divided by the time scale), lag and delay in the client's own."""

    num_requests: int
    """Finished, warm-up included."""
    num_warmup: int
    num_errors: int
    """Of all of them, warm-up included."""
    num_receipts: int
    """Measured answers that brought one; tokens and segments are counted from these."""
    num_workers: int
    """Prefill workers that these came from."""
    is_interrupted: bool
    wall_s: float
    sent_per_s: float | None
    """Measured rate of sending in the trace's time."""
    ttft_ms: Quantiles
    tokens: TokenCounts
    hit_ratio: float | None
    segments: SegmentCounts
    num_source_kinds: int
    loop_lag_ms: Quantiles
    send_delay_ms: Quantiles
    errors: dict[str, int]
    """Failed requests by reason."""


def summarize(record: ReplayRecord, settings: ReplaySettings) -> ReplaySummary:
    outcomes = sorted(record.outcomes, key=lambda outcome: outcome.position)
    measured = [outcome for outcome in outcomes if outcome.position >= settings.warmup_requests]
    answered = [outcome for outcome in measured if outcome.is_ok]
    receipts = [outcome.receipt for outcome in answered if outcome.receipt is not None]
    failures = Counter(outcome.error for outcome in outcomes if outcome.error is not None)
    tokens = count_tokens(receipts)
    segments = count_segments(receipts)
    ttfts_s = [outcome.ttft_s for outcome in answered if outcome.ttft_s is not None]
    return ReplaySummary(
        num_requests=len(outcomes),
        num_warmup=len(outcomes) - len(measured),
        num_errors=failures.total(),
        num_receipts=len(receipts),
        num_workers=len({receipt.worker for receipt in receipts}),
        is_interrupted=record.is_interrupted,
        wall_s=record.wall_s,
        sent_per_s=_rate_per_s(measured, settings.time_scale),
        ttft_ms=quantiles_ms(ttfts_s, settings.time_scale),
        tokens=tokens,
        hit_ratio=tokens.hit_ratio,
        segments=segments,
        num_source_kinds=segments.num_kinds,
        loop_lag_ms=quantiles_ms(record.lag.lags_s),
        send_delay_ms=quantiles_ms([outcome.send_delay_s for outcome in measured]),
        errors=dict(failures.most_common()),
    )


def count_tokens(receipts: Sequence[Receipt]) -> TokenCounts:
    helper_computed = sum(_helper_computed_tokens(receipt) for receipt in receipts)
    return TokenCounts(
        prompt=sum(receipt.prompt_tokens for receipt in receipts),
        prefix_hit=sum(receipt.prefix_hit_tokens for receipt in receipts),
        local_hit=sum(receipt.local_hit_tokens for receipt in receipts),
        fetched_hit=sum(receipt.fetched_hit_tokens for receipt in receipts) - helper_computed,
        helper_computed=helper_computed,
        recomputed=sum(receipt.recomputed_tokens for receipt in receipts),
        computed=sum(receipt.computed_tokens for receipt in receipts),
        invalid_hit=sum(receipt.invalid_hit_tokens for receipt in receipts),
    )


def _helper_computed_tokens(receipt: Receipt) -> int:
    return sum(
        segment.end - segment.start - segment.prefix_tokens
        for segment in receipt.segments
        if segment.done is Source.COMPUTE_AT
    )


def count_segments(receipts: Iterable[Receipt]) -> SegmentCounts:
    segments = [segment for receipt in receipts for segment in receipt.segments]
    planned = Counter(segment.planned for segment in segments)
    done = Counter(segment.done for segment in segments)
    fallbacks = Counter(segment.fallback for segment in segments if segment.fallback is not None)
    return SegmentCounts(
        planned={source: planned[source] for source in Source},
        done={source: done[source] for source in Source},
        fallbacks=dict(fallbacks.most_common()),
    )


def _rate_per_s(outcomes: Sequence[RequestOutcome], time_scale: float) -> float | None:
    if len(outcomes) < 2:
        return None
    span_s = max(outcome.sent_s for outcome in outcomes) - min(outcome.sent_s for outcome in outcomes)
    return (len(outcomes) - 1) / span_s * time_scale if span_s > 0 else None


def quantiles_ms(values_s: Sequence[float], time_scale: float = 1.0) -> Quantiles:
    """Of times in seconds, divided by the time scale."""
    if not values_s:
        return Quantiles(None, None, None)
    p50, p95, p99 = np.percentile(values_s, (50, 95, 99)) * (1e3 / time_scale)
    return Quantiles(float(p50), float(p95), float(p99))
