"""What a run showed, in numbers. Words as in the replay of a live deployment."""

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from nebula_bench.cluster.outcome import Outcome
from nebula_bench.cluster.repeated import PrefilledRequest, judge_repeated
from nebula_bench.cluster.simulation import Record
from nebula_bench.replay.summary import Quantiles, SegmentCounts, TokenCounts, count_segments, count_tokens
from nebula_protocol.ids import SegmentHash
from nebula_protocol.receipt import Receipt
from pic_worker.core.step_cost import StepCost

_MS_PER_S = 1000


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Mean milliseconds of a request's time to first token; they add up to its mean."""

    queue: float
    """Ready to run, but other requests had the engine."""
    transfer_wait: float
    """Waiting for remote segments while not runnable."""
    compute: float
    """What its own steps would have taken with nobody else in them."""
    batching: float
    """What others in the same steps added, and noise."""
    messages: float
    """Everything outside the worker, retries included."""


class RepeatedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of segments that were computed although a copy existed or was on its way when the request was placed."""

    repeated: int
    """The router did not know."""
    on_purpose: int
    """The router knew and judged computing to be faster."""
    fallback: int
    """Planned as a hit, and computed after all: gone, late, or vetoed by the worker."""
    helper_computed: int
    """Computed alone by helpers."""


class CellSummary(msgspec.Struct, frozen=True, kw_only=True):
    num_requests: int
    """Measured, warm-up excluded."""
    num_errors: int
    num_retries: int
    ttft_ms: Quantiles
    tokens: TokenCounts
    hit_ratio: float | None
    recoverable_tokens: int
    """Of segments that an earlier request had too, and that no prefix hit covered: what an unlimited cache of segments
    would have had. Segment hits (local and fetched) are to be compared with it."""
    segments: SegmentCounts
    repeated: RepeatedTokens
    breakdown_ms: Breakdown
    busy_ratio: float
    """Share of the prefill workers' time spent in steps, from the first measured arrival to the last."""
    num_lost_messages: int
    num_state_fetches: int
    """Full states asked for after the start."""


def summarize(record: Record, warmup_requests: int) -> CellSummary:
    measured = record.outcomes[warmup_requests:]
    receipts = [outcome.receipt for outcome in measured if outcome.receipt is not None]
    tokens, segments = count_tokens(receipts), count_segments(receipts)
    return CellSummary(
        num_requests=len(measured),
        num_errors=sum(outcome.error is not None for outcome in measured),
        num_retries=sum(outcome.num_attempts - 1 for outcome in measured),
        ttft_ms=_quantiles_ms([outcome.ttft_s for outcome in measured if outcome.ttft_s is not None]),
        tokens=tokens,
        hit_ratio=tokens.hit_ratio,
        recoverable_tokens=_count_recoverable(record.outcomes, warmup_requests),
        segments=segments,
        repeated=_count_repeated(record, warmup_requests),
        breakdown_ms=_mean_breakdown(measured, record.costs.step),
        busy_ratio=_busy_ratio(record, measured),
        num_lost_messages=record.num_lost_messages,
        num_state_fetches=record.num_state_fetches,
    )


def _count_recoverable(outcomes: Sequence[Outcome], warmup_requests: int) -> int:
    seen: set[SegmentHash] = set()
    recoverable = 0
    for outcome in outcomes:
        segments = () if outcome.receipt is None else outcome.receipt.segments
        if outcome.position >= warmup_requests:
            recoverable += sum(
                segment.end - segment.start - segment.prefix_tokens
                for segment in segments
                if segment.segment_hash in seen
            )
        seen.update(segment.segment_hash for segment in segments)
    return recoverable


def _quantiles_ms(values_s: Sequence[float]) -> Quantiles:
    if not values_s:
        return Quantiles(None, None, None)
    p50, p95, p99 = np.quantile(np.array(values_s) * _MS_PER_S, (0.5, 0.95, 0.99)).tolist()
    return Quantiles(p50, p95, p99)


def _busy_ratio(record: Record, measured: Sequence[Outcome]) -> float:
    start_s, end_s = measured[0].arrived_at_s, measured[-1].arrived_at_s
    span_s = (end_s - start_s) * record.num_prefill_workers
    return record.log.busy_s(start_s, end_s) / span_s if span_s > 0 else 0.0


def _mean_breakdown(measured: Sequence[Outcome], step_cost: StepCost) -> Breakdown:
    rows = [
        _breakdown_s(outcome.receipt, outcome.ttft_s, step_cost)
        for outcome in measured
        if outcome.receipt is not None and outcome.ttft_s is not None
    ]
    queue, wait, compute, batching, messages = (np.array(rows).mean(axis=0) * _MS_PER_S).tolist() if rows else [0.0] * 5
    return Breakdown(queue=queue, transfer_wait=wait, compute=compute, batching=batching, messages=messages)


def _breakdown_s(receipt: Receipt, ttft_s: float, step_cost: StepCost) -> tuple[float, float, float, float, float]:
    timing, work = receipt.timing, receipt.work
    steps = max(work.num_steps, 1)
    own_s = steps * step_cost.step_s(max(work.computed_tokens // steps, 1), work.attention_pairs / steps)
    compute_s = min(own_s, timing.compute_s)
    return (
        timing.queue_s,
        timing.wait_s,
        compute_s,
        timing.compute_s - compute_s,
        ttft_s - timing.total_s,
    )


def _count_repeated(record: Record, warmup_requests: int) -> RepeatedTokens:
    prefilled = {one.position: _prefilled(one) for one in record.outcomes}
    done = [one for one in prefilled.values() if one is not None]
    measured = [one for position, one in prefilled.items() if one is not None and position >= warmup_requests]
    found = judge_repeated(record.log, done, measured)
    helped = sum(one.computed_tokens for outcome in record.outcomes for one in outcome.helper_receipts)
    return RepeatedTokens(
        repeated=found.unknowingly, on_purpose=found.on_purpose, fallback=found.as_fallback, helper_computed=helped
    )


def _prefilled(outcome: Outcome) -> PrefilledRequest | None:
    if outcome.receipt is None or outcome.placement is None or outcome.first_token_at_s is None:
        return None
    return PrefilledRequest(
        outcome.decided_at_s, outcome.first_token_at_s, outcome.receipt, outcome.placement.known_segments
    )


def error_counts(record: Record) -> dict[str, int]:
    """Failed requests by reason."""
    return dict(Counter(outcome.error for outcome in record.outcomes if outcome.error is not None).most_common())
