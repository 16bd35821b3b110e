"""Engine of these tests: a step has a floor of 10 ms and room for 1,000 tokens."""

from math import inf

import pytest

from nebula_protocol.ids import RequestId
from nebula_router.core.shadow_engine import ShadowEngine

A, B, C = RequestId("a"), RequestId("b"), RequestId("c")


def engine() -> ShadowEngine:
    return ShadowEngine(step_s=0.010, max_step_tokens=1000)


def add(shadow: ShadowEngine, request_id: RequestId, tokens: int, now_s: float, runnable_at_s: float = 0.0) -> None:
    """A token takes 0.1 ms."""
    shadow.add(request_id, step_tokens=tokens, marginal_s=tokens * 0.0001, runnable_at_s=runnable_at_s, now_s=now_s)


def test_an_idle_engine_is_free_at_once() -> None:
    summary = engine().summary(5.0)
    assert summary.step_ends_at_s is None
    assert (summary.queued_s, summary.queued_tokens, summary.co_batched) == (0.0, 0, 0)
    assert summary.late_from_at_s == inf


def test_a_request_on_an_idle_engine_starts_a_step_at_once() -> None:
    shadow = engine()
    add(shadow, A, 200, now_s=5.0)
    # 10 ms + 200 * 0.1 ms
    assert shadow.summary(5.0).step_ends_at_s == pytest.approx(5.030)


def test_who_comes_during_a_step_is_queued_for_the_next() -> None:
    shadow = engine()
    add(shadow, A, 200, now_s=5.0)
    add(shadow, B, 300, now_s=5.01)
    summary = shadow.summary(5.01)
    assert summary.step_ends_at_s == pytest.approx(5.030)
    assert summary.queued_s == pytest.approx(0.030)
    assert (summary.queued_tokens, summary.co_batched) == (300, 1)


def test_a_step_that_completes_somebody_is_not_over_before_the_receipt() -> None:
    shadow = engine()
    add(shadow, A, 200, now_s=5.0)
    add(shadow, B, 300, now_s=5.01)
    summary = shadow.summary(9.0)
    assert summary.step_ends_at_s == pytest.approx(5.030)
    assert summary.queued_tokens == 300


def test_a_receipt_ends_the_step_and_starts_the_next() -> None:
    shadow = engine()
    add(shadow, A, 200, now_s=5.0)
    add(shadow, B, 300, now_s=5.01)
    shadow.end_step(A, now_s=5.05)
    summary = shadow.summary(5.05)
    # 5.05 + 10 ms + 300 * 0.1 ms: the estimate is anchored at the receipt, not at 5.030.
    assert summary.step_ends_at_s == pytest.approx(5.090)
    assert summary.queued_tokens == 0
    assert shadow.num_outstanding == 1


def test_a_long_prompt_takes_several_steps_of_which_only_the_last_waits_for_a_receipt() -> None:
    shadow = engine()
    add(shadow, A, 2500, now_s=0.0)
    # The first two steps have 1,000 tokens each and take 10 + 100 ms; the last has 500 and takes 10 + 50 ms.
    assert shadow.summary(0.0).step_ends_at_s == pytest.approx(0.110)
    assert shadow.summary(0.0).queued_s == pytest.approx(0.150)
    assert shadow.summary(0.115).step_ends_at_s == pytest.approx(0.220)
    assert shadow.summary(0.300).step_ends_at_s == pytest.approx(0.280)
    assert shadow.summary(9.0).step_ends_at_s == pytest.approx(0.280)


def test_a_chunk_step_makes_the_summary_stale_when_it_ends() -> None:
    shadow = engine()
    add(shadow, A, 2500, now_s=0.0)
    assert shadow.summary(0.0).stale_at_s == pytest.approx(0.110)
    assert shadow.summary(0.250).stale_at_s == inf


def test_a_step_takes_as_many_requests_as_its_budget_allows() -> None:
    shadow = engine()
    add(shadow, A, 100, now_s=0.0)
    add(shadow, B, 700, now_s=0.001)
    add(shadow, C, 700, now_s=0.002)
    shadow.end_step(A, now_s=0.020)
    summary = shadow.summary(0.020)
    # B's 700 and 300 of C's: 10 ms + 1,000 * 0.1 ms, and C's other 400 are queued.
    assert summary.step_ends_at_s == pytest.approx(0.130)
    assert summary.queued_tokens == 400
    assert summary.queued_s == pytest.approx(0.040)


def test_only_those_in_the_last_step_of_the_queue_share_it_with_a_newcomer() -> None:
    shadow = engine()
    add(shadow, A, 100, now_s=0.0)
    add(shadow, B, 900, now_s=0.001)
    add(shadow, C, 300, now_s=0.002)
    # 900 + 300 = 1,200 tokens: the second step has 200, all of them C's.
    assert shadow.summary(0.002).co_batched == 1


def test_nobody_shares_a_step_that_is_full() -> None:
    shadow = engine()
    add(shadow, A, 100, now_s=0.0)
    add(shadow, B, 1000, now_s=0.001)
    assert shadow.summary(0.001).co_batched == 0


def test_who_waits_for_segments_does_not_hold_the_engine() -> None:
    shadow = engine()
    add(shadow, A, 400, now_s=0.0, runnable_at_s=0.100)
    summary = shadow.summary(0.0)
    assert summary.step_ends_at_s is None
    assert summary.queued_s == 0.0
    # From 0.100 on a newcomer has a step of 10 ms + 400 * 0.1 ms in front of it.
    assert summary.late_from_at_s == pytest.approx(0.100)
    assert summary.late_clear_at_s == pytest.approx(0.150)
    assert summary.stale_at_s == pytest.approx(0.100)


def test_who_has_waited_for_segments_starts_when_they_arrive() -> None:
    shadow = engine()
    add(shadow, A, 400, now_s=0.0, runnable_at_s=0.100)
    # 0.100 + 10 ms + 40 ms, although nobody looked at 0.100.
    assert shadow.summary(0.120).step_ends_at_s == pytest.approx(0.150)


def test_those_whose_segments_arrive_during_a_step_share_the_next_one() -> None:
    shadow = engine()
    add(shadow, A, 400, now_s=0.0, runnable_at_s=0.100)
    add(shadow, B, 200, now_s=0.0, runnable_at_s=0.120)
    add(shadow, C, 100, now_s=0.0, runnable_at_s=0.130)
    # A's step ends at 0.150; B and C then take 10 + 20 + 10 ms.
    assert shadow.summary(0.0).late_clear_at_s == pytest.approx(0.190)


def test_a_newcomer_shares_the_last_step_of_the_queue_if_it_is_runnable_when_that_begins() -> None:
    shadow = engine()
    add(shadow, A, 100, now_s=0.0)
    add(shadow, B, 900, now_s=0.001)
    add(shadow, C, 300, now_s=0.002)
    summary = shadow.summary(0.002)
    # Behind A's step: 1,000 tokens in 10 + 100 ms, then 200 in 10 + 20 ms.
    assert summary.turn_s == pytest.approx(0.110)
    assert summary.drained_s == pytest.approx(0.140)
    assert summary.queued_s == pytest.approx(0.120)


def test_a_full_step_is_over_before_a_newcomers_begins() -> None:
    shadow = engine()
    add(shadow, A, 100, now_s=0.0)
    add(shadow, B, 1000, now_s=0.001)
    summary = shadow.summary(0.001)
    assert summary.turn_s == summary.drained_s == pytest.approx(0.110)


def test_others_run_in_front_of_who_waits_for_segments() -> None:
    shadow = engine()
    add(shadow, A, 400, now_s=0.0, runnable_at_s=0.100)
    add(shadow, B, 200, now_s=0.010)
    assert shadow.summary(0.010).step_ends_at_s == pytest.approx(0.040)


def test_segments_that_arrive_during_the_step_put_their_request_into_the_queue() -> None:
    shadow = engine()
    add(shadow, A, 500, now_s=0.0)
    # A's step ends at 10 + 50 ms.
    add(shadow, B, 400, now_s=0.010, runnable_at_s=0.050)
    summary = shadow.summary(0.010)
    assert (summary.queued_tokens, summary.late_from_at_s) == (400, inf)


def test_others_of_the_same_step_stay_until_their_own_receipts() -> None:
    shadow = engine()
    add(shadow, A, 100, now_s=0.0)
    add(shadow, B, 300, now_s=0.001)
    add(shadow, C, 300, now_s=0.002)
    shadow.end_step(A, now_s=0.020)
    shadow.end_step(B, now_s=0.090)
    # C's receipt is on its way, or C was in no step with B: 0.090 + 10 ms + 30 ms.
    assert shadow.summary(0.090).step_ends_at_s == pytest.approx(0.130)
    shadow.end_step(C, now_s=0.091)
    assert shadow.summary(0.091).step_ends_at_s is None
    assert shadow.num_outstanding == 0


def test_a_second_receipt_of_the_same_step_does_not_end_the_next_one() -> None:
    shadow = engine()
    add(shadow, A, 100, now_s=0.0)
    add(shadow, B, 100, now_s=0.001)
    add(shadow, C, 1800, now_s=0.002)
    shadow.end_step(A, now_s=0.020)
    # B's 100 tokens and 900 of C's: 10 + 100 ms. B's receipt tells that this step is over, 900 of C's are left ...
    shadow.end_step(B, now_s=0.130)
    assert shadow.summary(0.130).step_ends_at_s == pytest.approx(0.130 + 0.100)
    # ... and one more receipt changes nothing about the step that began then.
    shadow.end_step(RequestId("d"), now_s=0.133)
    assert shadow.summary(0.133).step_ends_at_s == pytest.approx(0.130 + 0.100)


def test_a_prompt_that_has_begun_goes_on_before_others_begin() -> None:
    shadow = engine()
    add(shadow, A, 100, now_s=0.0)
    add(shadow, B, 950, now_s=0.001, runnable_at_s=0.050)
    add(shadow, C, 1500, now_s=0.002)
    shadow.end_step(A, now_s=0.020)
    # C runs alone, since B waits. When 1,000 of it are done, its other 500 come first: 500 of B's share the step, which
    # takes 10 + 100 ms from 0.130 on, and leaves 450 of B's.
    summary = shadow.summary(0.130)
    assert summary.step_ends_at_s == pytest.approx(0.240)
    assert summary.queued_tokens == 450


def test_a_receipt_from_the_queue_shows_that_the_engine_is_ahead() -> None:
    shadow = engine()
    add(shadow, A, 1000, now_s=0.0)
    add(shadow, B, 200, now_s=0.001)
    shadow.end_step(B, now_s=0.080)
    # A is still outstanding, and a step ended just now: 0.080 + 10 ms + 100 ms.
    assert shadow.summary(0.080).step_ends_at_s == pytest.approx(0.190)


def test_a_dropped_request_leaves_the_queue() -> None:
    shadow = engine()
    add(shadow, A, 100, now_s=0.0)
    add(shadow, B, 300, now_s=0.001)
    shadow.drop(B, now_s=0.002)
    assert shadow.summary(0.002).queued_tokens == 0
    assert shadow.summary(0.002).step_ends_at_s == pytest.approx(0.020)


def test_a_step_whose_only_request_is_dropped_makes_room_for_the_next() -> None:
    shadow = engine()
    add(shadow, A, 100, now_s=0.0)
    add(shadow, B, 300, now_s=0.001)
    shadow.drop(A, now_s=0.005)
    assert shadow.summary(0.005).step_ends_at_s == pytest.approx(0.045)


def test_an_unknown_receipt_or_drop_loses_nobody() -> None:
    shadow = engine()
    add(shadow, A, 100, now_s=0.0)
    shadow.drop(C, now_s=0.001)
    assert shadow.summary(0.001).step_ends_at_s == pytest.approx(0.020)
    shadow.end_step(C, now_s=0.001)
    assert shadow.num_outstanding == 1


def test_new_limits_hold_from_the_next_step_on() -> None:
    shadow = engine()
    add(shadow, A, 100, now_s=0.0)
    add(shadow, B, 300, now_s=0.001)
    shadow.set_limits(step_s=0.020, max_step_tokens=200)
    assert shadow.summary(0.001).step_ends_at_s == pytest.approx(0.020)
    shadow.end_step(A, now_s=0.020)
    # 20 ms + 200 * 0.1 ms, and 100 tokens are left.
    assert shadow.summary(0.020).step_ends_at_s == pytest.approx(0.060)
    assert shadow.summary(0.020).queued_tokens == 100
