"""What the router counts, as Prometheus reads it."""

import pytest
from support.placement_case import round_card
from support.router_replies import a_receipt
from support.router_world import body_of, decide, metric_value, new_state

from nebula_protocol.ids import SegmentHash
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason, SegmentOutcome
from nebula_router.decide import Learned
from nebula_router.metrics import HitKind, MetricName, RouterMetrics

NOTHING_LEARNED = Learned(repeated_tokens=0)


def outcome(done: Source, fallback: FallbackReason | None = None) -> SegmentOutcome:
    return SegmentOutcome(
        start=0, end=10, segment_hash=SegmentHash(bytes(16)), planned=Source.FETCH, done=done, fallback=fallback
    )


def test_a_receipt_adds_to_each_of_its_counts() -> None:
    metrics = RouterMetrics()
    receipt = a_receipt(
        prompt_tokens=100,
        prefix_hit_tokens=16,
        local_hit_tokens=20,
        fetched_hit_tokens=24,
        computed_tokens=40,
        recomputed_tokens=3,
        invalid_hit_tokens=5,
    )
    for repeated_tokens in (0, 7):
        metrics.observe_receipt(receipt, Learned(repeated_tokens=repeated_tokens))
    assert {kind: metric_value(metrics, MetricName.HIT_TOKENS, kind=kind) for kind in HitKind} == {
        HitKind.PREFIX: 32,
        HitKind.LOCAL: 40,
        HitKind.FETCHED: 48,
    }
    names = (
        MetricName.PROMPT_TOKENS,
        MetricName.COMPUTED_TOKENS,
        MetricName.RECOMPUTED_TOKENS,
        MetricName.INVALID_HIT_TOKENS,
        MetricName.REPEATED_TOKENS,
    )
    assert [metric_value(metrics, name) for name in names] == [200, 80, 6, 10, 7]


def test_segments_count_by_what_was_done_and_fallbacks_by_reason() -> None:
    metrics = RouterMetrics()
    segments = (
        outcome(Source.FETCH),
        outcome(Source.COMPUTE, FallbackReason.LATE),
        outcome(Source.COMPUTE, FallbackReason.LATE),
        outcome(Source.COMPUTE, FallbackReason.VETO),
    )
    metrics.observe_receipt(a_receipt(segments=segments), NOTHING_LEARNED)
    assert metric_value(metrics, MetricName.SEGMENTS, source="fetch") == 1
    assert metric_value(metrics, MetricName.SEGMENTS, source="compute") == 3
    assert metric_value(metrics, MetricName.FALLBACKS, reason="late") == 2
    assert metric_value(metrics, MetricName.FALLBACKS, reason="veto") == 1


@pytest.mark.parametrize(
    ("name", "label", "values"),
    [
        (MetricName.SEGMENTS, "source", Source),
        (MetricName.HIT_TOKENS, "kind", HitKind),
        (MetricName.FALLBACKS, "reason", FallbackReason),
        (MetricName.STATE_FETCHES, "result", ("ok", "failed")),
        (MetricName.EVENTS, "topic", ("kv-events", "pic-events")),
    ],
)
def test_labels_with_a_closed_set_of_values_start_at_zero(name: MetricName, label: str, values: type[Source]) -> None:
    metrics = RouterMetrics()
    assert {metric_value(metrics, name, **{label: value}) for value in values} == {0}


def test_a_decision_counts_at_its_target() -> None:
    metrics = RouterMetrics()
    metrics.observe_decision(decide(new_state(round_card(1)), body_of([1] * 100)))
    assert metric_value(metrics, MetricName.REQUESTS, target_worker_id="1") == 1
    assert metric_value(metrics, MetricName.DECISION_SECONDS) == 1
    assert metric_value(metrics, MetricName.TTFT_ESTIMATED_SECONDS) == 1
    # 10 ms for the step and 0.1 ms a token.
    assert f"{MetricName.TTFT_ESTIMATED_SECONDS}_sum 0.02" in metrics.exposition()


def test_events_gaps_states_retries_and_sizes_are_told() -> None:
    metrics = RouterMetrics()
    metrics.count_events("kv-events")
    metrics.count_gap("pic-events", "lost_events")
    metrics.count_state_fetch("ok")
    metrics.count_retry()
    metrics.observe_ttft(0.3)
    metrics.set_index_size(num_blocks=5, num_segments=6, num_workers=7)
    assert metric_value(metrics, MetricName.EVENTS, topic="kv-events") == 1
    assert metric_value(metrics, MetricName.EVENT_GAPS, topic="pic-events", reason="lost_events") == 1
    assert metric_value(metrics, MetricName.STATE_FETCHES, result="ok") == 1
    assert metric_value(metrics, MetricName.RETRIES) == 1
    assert metric_value(metrics, MetricName.TTFT_OBSERVED_SECONDS) == 1
    assert metric_value(metrics, MetricName.INDEX_ENTRIES, kind="block") == 5
    assert metric_value(metrics, MetricName.INDEX_ENTRIES, kind="segment") == 6
    assert metric_value(metrics, MetricName.WORKERS) == 7


def test_every_metric_is_exposed_under_its_own_name() -> None:
    text = RouterMetrics().exposition()
    assert [name for name in MetricName if f"# TYPE {name} " not in text] == []


def test_two_routers_in_one_process_count_apart() -> None:
    first, second = RouterMetrics(), RouterMetrics()
    first.count_retry()
    assert metric_value(second, MetricName.RETRIES) == 0
