"""A replay's numbers: what counts, and in which time."""

import msgspec
import pytest

from nebula_bench.replay.outcome import RequestOutcome
from nebula_bench.replay.report import render_summary, to_json
from nebula_bench.replay.runner import ReplayRecord
from nebula_bench.replay.settings import ReplaySettings
from nebula_bench.replay.summary import summarize
from nebula_protocol.ids import RequestId, SegmentHash, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason, Receipt, SegmentOutcome, StepWork, Timing

SETTINGS = ReplaySettings(url="http://127.0.0.1:1", rate_per_s=10.0)


def segment(planned: Source, done: Source, fallback: FallbackReason | None = None) -> SegmentOutcome:
    return SegmentOutcome(
        start=0, end=10, segment_hash=SegmentHash(bytes(16)), planned=planned, done=done, fallback=fallback
    )


def receipt(worker_id: int = 1, segments: tuple[SegmentOutcome, ...] = ()) -> Receipt:
    """100 prompt tokens: 10 by prefix, 30 local, 20 fetched (5 of these 50 recomputed), 40 computed."""
    return Receipt(
        request_id=RequestId("r"),
        worker=WorkerWithDpRank(WorkerId(worker_id)),
        epoch=WorkerEpoch(1),
        prompt_tokens=100,
        prefix_hit_tokens=10,
        segment_hit_tokens=50,
        local_hit_tokens=30,
        fetched_hit_tokens=20,
        recomputed_tokens=5,
        computed_tokens=40,
        invalid_hit_tokens=7,
        segments=segments,
        timing=Timing(queue_s=0, wait_s=0, compute_s=0, total_s=0),
        work=StepWork(computed_tokens=45, attention_pairs=0, num_steps=1, step_tokens=45, step_pairs=0, step_s=0),
        last_event_ids={},
    )


def outcome(
    position: int, ttft_s: float | None = 0.1, error: str | None = None, answer: Receipt | None = None
) -> RequestOutcome:
    sent_s = position + 0.002
    return RequestOutcome(
        position=position,
        prompt_tokens=100,
        scheduled_s=float(position),
        sent_s=sent_s,
        first_content_s=None if ttft_s is None else sent_s + ttft_s,
        finished_s=sent_s + 1,
        receipt=answer,
        error=error,
    )


def record(*outcomes: RequestOutcome) -> ReplayRecord:
    return ReplayRecord(outcomes=list(outcomes))


def test_quantiles_are_over_answered_requests_behind_the_warm_up() -> None:
    settings = SETTINGS.model_copy(update={"warmup_requests": 1})
    finished = record(outcome(0, 9.0), outcome(1, 0.1), outcome(2, 0.2), outcome(3, 0.3), outcome(4, 5.0, "500: no"))
    summary = summarize(finished, settings)
    assert (summary.num_requests, summary.num_warmup, summary.num_errors) == (5, 1, 1)
    # Of 100, 200, 300 ms: the middle, and by linear interpolation 200 + 0.9 * 100 and 200 + 0.98 * 100.
    assert summary.ttft_ms.p50 == pytest.approx(200)
    assert summary.ttft_ms.p95 == pytest.approx(290)
    assert summary.ttft_ms.p99 == pytest.approx(298)


def test_an_error_in_the_warm_up_is_still_an_error() -> None:
    settings = SETTINGS.model_copy(update={"warmup_requests": 1})
    summary = summarize(record(outcome(0, None, "timed out"), outcome(1)), settings)
    assert summary.errors == {"timed out": 1}


def test_reported_latencies_are_divided_by_the_time_scale_and_the_clients_own_are_not() -> None:
    settings = SETTINGS.model_copy(update={"time_scale": 4.0})
    finished = record(outcome(0, 0.4), outcome(4, 0.4), outcome(8, 0.4))
    finished.lag.lags_s.append(0.003)
    summary = summarize(finished, settings)
    assert summary.ttft_ms.p50 == pytest.approx(100)  # 400 ms / 4
    assert summary.loop_lag_ms.p50 == pytest.approx(3)
    assert summary.send_delay_ms.p99 == pytest.approx(2)
    assert summary.sent_per_s == pytest.approx(1.0)  # 2 gaps in 8 s, times 4


def test_tokens_are_summed_and_the_hit_ratio_counts_prefix_and_segments() -> None:
    summary = summarize(record(outcome(0, answer=receipt(1)), outcome(1, answer=receipt(2)), outcome(2)), SETTINGS)
    assert (summary.num_receipts, summary.num_workers) == (2, 2)
    tokens = summary.tokens
    assert (tokens.prompt, tokens.prefix_hit, tokens.local_hit, tokens.fetched_hit) == (200, 20, 60, 40)
    assert (tokens.recomputed, tokens.computed, tokens.invalid_hit) == (10, 80, 14)
    assert summary.hit_ratio == pytest.approx(0.6)  # (10 + 30 + 20) / 100


def test_what_helpers_computed_for_the_request_was_fetched_but_is_no_hit() -> None:
    by_helper = SegmentOutcome(
        start=80,
        end=100,
        segment_hash=SegmentHash(bytes(16)),
        planned=Source.COMPUTE_AT,
        done=Source.COMPUTE_AT,
        prefix_tokens=5,
    )
    summary = summarize(record(outcome(0, answer=receipt(segments=(by_helper,)))), SETTINGS)
    # 100 - 80 less the 5 that the prefix covered; the receipt's 20 fetched tokens contain them.
    assert (summary.tokens.helper_computed, summary.tokens.fetched_hit) == (15, 5)
    assert summary.hit_ratio == pytest.approx(0.45)  # (10 + 30 + 5) / 100


def test_source_kinds_are_counted_by_what_was_done() -> None:
    segments = (
        segment(Source.LOCAL, Source.LOCAL),
        segment(Source.FETCH, Source.COMPUTE, FallbackReason.LATE),
        segment(Source.FETCH, Source.FETCH),
        segment(Source.COMPUTE, Source.COMPUTE),
    )
    summary = summarize(record(outcome(0, answer=receipt(segments=segments))), SETTINGS)
    assert summary.segments.planned[Source.FETCH] == 2
    assert summary.segments.done == {
        Source.LOCAL: 1,
        Source.FETCH: 1,
        Source.JOIN: 0,
        Source.COMPUTE: 2,
        Source.COMPUTE_AT: 0,
    }
    assert summary.segments.fallbacks == {FallbackReason.LATE: 1}
    assert summary.num_source_kinds == 3


def test_a_failed_requests_receipt_does_not_count() -> None:
    summary = summarize(record(outcome(0, error="torn", answer=receipt())), SETTINGS)
    assert summary.num_receipts == 0
    assert summary.hit_ratio is None


def test_an_interrupted_replay_without_any_answer_still_has_a_summary_and_a_table() -> None:
    finished = ReplayRecord(is_interrupted=True)
    summary = summarize(finished, SETTINGS)
    assert summary.ttft_ms.p50 is None
    assert summary.sent_per_s is None
    render_summary(summary)


def test_the_json_record_has_a_row_for_each_request_in_the_order_of_the_trace() -> None:
    outcomes = [outcome(1, answer=receipt()), outcome(0, None, "500: no")]
    data = to_json(summarize(record(*outcomes), SETTINGS), outcomes, SETTINGS, "demo.jsonl")
    decoded = msgspec.json.decode(data)
    assert decoded["trace"] == "demo.jsonl"
    assert decoded["settings"]["rate_per_s"] == 10.0
    assert decoded["summary"]["num_errors"] == 1
    assert [row["position"] for row in decoded["requests"]] == [0, 1]
    assert decoded["requests"][0]["error"] == "500: no"
    assert decoded["requests"][1]["local_hit_tokens"] == 30
