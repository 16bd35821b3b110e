"""Speculation in the merged view: dispatches, receipts, failures, and time."""

from support.placement_case import segment_hash, worker
from support.view_world import (
    DOMAIN_ID,
    NOW_S,
    TTL_S,
    Dispatch,
    Publisher,
    cover,
    device_blocks,
    new_view,
    prompt,
    segment_states,
)

from nebula_protocol.events import StoreCleared
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason
from nebula_router.core.coverage import IN_FLIGHT, NOT_HELD, STORED, UNCONFIRMED

LATE_S = NOW_S + 1000


def test_a_dispatched_prompts_blocks_are_expected_at_its_target() -> None:
    view = new_view(2)
    Dispatch(prompt([10, 11, 12]), target=2).record(view)
    assert device_blocks(view, [10, 11, 12]) == [0, 3]
    assert device_blocks(view, [10, 11, 99]) == [0, 2]


def test_blocks_are_expected_behind_those_that_are_there() -> None:
    view = new_view(1)
    view.apply_kv_events([Publisher().stored([10, 11])], NOW_S)
    Dispatch(prompt([10, 11, 12, 13])).record(view)
    assert device_blocks(view, [10, 11, 12, 13]) == [4]


def test_blocks_that_another_worker_has_are_expected_at_the_target_too() -> None:
    view = new_view(2)
    view.apply_kv_events([Publisher(1).stored([10, 11])], NOW_S)
    Dispatch(prompt([10, 11, 12]), target=2).record(view)
    assert device_blocks(view, [10, 11, 12]) == [2, 3]


def test_computed_segments_are_in_flight_until_the_prompt_is_complete() -> None:
    view = new_view(2)
    Dispatch(prompt(segments=["a", "b"]), computed=[1], ready_at_s=NOW_S + 2).record(view)
    coverage = cover(view, prompt(segments=["a", "b"]))
    assert coverage.segment_states.tolist() == [[NOT_HELD, NOT_HELD], [IN_FLIGHT, NOT_HELD]]
    assert coverage.segment_ready_at_s.tolist() == [[0, 0], [NOW_S + 2, 0]]


def test_copies_are_in_flight_until_the_prompt_can_run_and_helpers_shares_until_they_are_ready() -> None:
    view = new_view(2)
    dispatch = Dispatch(prompt(segments=["a", "b"]), copied=[0], helpers={2: [1]}, runnable_at_s=NOW_S + 1)
    dispatch.record(view)
    coverage = cover(view, prompt(segments=["a", "b"]))
    assert coverage.segment_states.tolist() == [[IN_FLIGHT, NOT_HELD], [NOT_HELD, IN_FLIGHT]]
    assert coverage.segment_ready_at_s.tolist() == [[NOW_S + 1, 0], [0, NOW_S + 1]]


def test_what_is_stored_is_not_in_flight() -> None:
    view = new_view(1)
    view.apply_pic_events(Publisher().segment_stored("a"), NOW_S)
    Dispatch(prompt(segments=["a"]), computed=[0]).record(view)
    assert segment_states(view, "a") == [STORED]


def test_a_failure_takes_everything_back_at_once() -> None:
    view = new_view(1)
    Dispatch(prompt([10], ["a"]), computed=[0]).record(view)
    view.record_failure(RequestId("request"), worker(1))
    assert segment_states(view, "a") == [NOT_HELD]
    assert device_blocks(view, [10]) == [0]
    assert (view.num_entries, view.num_claims) == (0, 0)


def test_a_failure_leaves_what_others_expect_too() -> None:
    view = new_view(1)
    Dispatch(prompt([10, 11, 12], ["a"]), request_id="first", computed=[0]).record(view)
    Dispatch(prompt([10, 11, 20], ["a"]), request_id="second", computed=[0]).record(view)
    view.record_failure(RequestId("first"), worker(1))
    assert device_blocks(view, [10, 11, 12]) == [2]
    assert device_blocks(view, [10, 11, 20]) == [3]
    assert segment_states(view, "a") == [IN_FLIGHT]


def test_a_failure_at_a_helper_leaves_the_target() -> None:
    view = new_view(2)
    Dispatch(prompt([10], ["a"]), helpers={2: [0]}).record(view)
    view.record_failure(RequestId("request"), worker(2))
    assert segment_states(view, "a") == [NOT_HELD, NOT_HELD]
    assert device_blocks(view, [10]) == [1, 0]


def test_a_request_that_is_placed_anew_replaces_its_claim() -> None:
    view = new_view(1)
    Dispatch(prompt([10])).record(view)
    Dispatch(prompt([20])).record(view)
    assert (device_blocks(view, [10]), device_blocks(view, [20])) == ([0], [1])
    assert view.num_claims == 1


def test_after_the_receipt_segments_are_unconfirmed_until_an_event_stores_them() -> None:
    view = new_view(1)
    dispatch = Dispatch(prompt(segments=["a"]), computed=[0])
    dispatch.record(view)
    view.record_receipt(dispatch.plan(), dispatch.receipt(stored=[0]), NOW_S + 2)
    assert segment_states(view, "a", NOW_S + 2) == [UNCONFIRMED]
    view.apply_pic_events(Publisher().segment_stored("a"), NOW_S + 3)
    assert segment_states(view, "a", LATE_S) == [STORED]


def test_unconfirmed_entries_live_for_the_ttl_from_the_receipt() -> None:
    view = new_view(1)
    dispatch = Dispatch(prompt([10], segments=["a"]), computed=[0], ready_at_s=NOW_S + 8)
    dispatch.record(view)
    view.record_receipt(dispatch.plan(), dispatch.receipt(stored=[0]), NOW_S + 9)
    assert segment_states(view, "a", NOW_S + 9 + TTL_S - 0.1) == [UNCONFIRMED]
    assert device_blocks(view, [10], NOW_S + 9 + TTL_S - 0.1) == [1]
    assert segment_states(view, "a", NOW_S + 9 + TTL_S) == [NOT_HELD]
    assert view.num_entries == 0


def test_without_a_receipt_the_ttl_counts_from_the_expected_completion() -> None:
    view = new_view(1)
    Dispatch(prompt([10]), ready_at_s=NOW_S + 60).record(view)
    assert device_blocks(view, [10], NOW_S + 60 + TTL_S - 0.1) == [1]
    assert view.expire(NOW_S + 60 + TTL_S) == 1
    assert device_blocks(view, [10], NOW_S + 60 + TTL_S) == [0]


def test_a_slow_prefill_can_be_postponed() -> None:
    view = new_view(1)
    Dispatch(prompt([10], ["a"]), computed=[0], ready_at_s=NOW_S + 2).record(view)
    view.postpone(RequestId("request"), worker(1), NOW_S + 50)
    coverage = cover(view, prompt(segments=["a"]), NOW_S + 2 + TTL_S)
    assert coverage.segment_ready_at_s.tolist() == [[NOW_S + 50]]
    assert segment_states(view, "a", NOW_S + 50 + TTL_S) == [NOT_HELD]


def test_stored_blocks_outlive_the_claim_that_announced_them() -> None:
    view = new_view(1)
    dispatch = Dispatch(prompt([10, 11, 12]))
    dispatch.record(view)
    view.apply_kv_events([Publisher().stored([10, 11])], NOW_S + 1)
    assert device_blocks(view, [10, 11, 12]) == [3]
    assert device_blocks(view, [10, 11, 12], LATE_S) == [2]


def test_an_evicted_block_that_a_dispatched_request_will_compute_again_stays_expected() -> None:
    view, events = new_view(1, store_capacity_tokens=0), Publisher()
    view.apply_kv_events([events.stored([10])], NOW_S)
    Dispatch(prompt([10, 11])).record(view)
    view.apply_kv_events([events.removed([10])], NOW_S)
    Dispatch(prompt([10, 11, 12]), request_id="second").record(view)
    assert device_blocks(view, [10, 11, 12]) == [3]
    view.apply_kv_events([events.removed([10])], NOW_S)
    assert device_blocks(view, [10, 11, 12]) == [3]


def test_an_evicted_segment_is_gone_for_finished_requests_and_not_for_those_in_flight() -> None:
    view, events = new_view(1), Publisher()
    finished = Dispatch(prompt(segments=["a"]), request_id="finished", computed=[0])
    finished.record(view)
    view.record_receipt(finished.plan(), finished.receipt(stored=[0]), NOW_S)
    view.apply_pic_events(events.segment_removed("a"), NOW_S)
    assert segment_states(view, "a") == [NOT_HELD]
    Dispatch(prompt(segments=["a"]), request_id="flying", computed=[0]).record(view)
    view.apply_pic_events(events.segment_removed("a"), NOW_S)
    assert segment_states(view, "a") == [IN_FLIGHT]


def test_an_evicted_block_is_gone_for_finished_requests_and_not_for_those_in_flight() -> None:
    view, events, other = new_view(2), Publisher(1), Publisher(2)
    view.apply_kv_events([events.stored([10, 11]), other.stored([10, 11]), events.removed([10, 11])], NOW_S)
    finished = Dispatch(prompt([10, 11]), request_id="finished")
    finished.record(view)
    view.record_receipt(finished.plan(), finished.receipt(), NOW_S)
    assert device_blocks(view, [10, 11]) == [2, 2]
    view.apply_kv_events([events.removed([11])], NOW_S)
    assert device_blocks(view, [10, 11]) == [1, 2]
    Dispatch(prompt([10, 11]), request_id="flying").record(view)
    view.apply_kv_events([events.removed([11])], NOW_S)
    assert device_blocks(view, [10, 11]) == [2, 2]


def test_clearing_a_store_ends_what_finished_requests_left_there() -> None:
    view, events = new_view(1), Publisher()
    finished = Dispatch(prompt(segments=["a", "b"]), request_id="finished", computed=[0])
    finished.record(view)
    view.record_receipt(finished.plan(), finished.receipt(stored=[0]), NOW_S)
    Dispatch(prompt(segments=["a", "b"]), request_id="flying", computed=[1]).record(view)
    view.apply_pic_events(events.pic(StoreCleared()), NOW_S)
    assert (segment_states(view, "a"), segment_states(view, "b")) == ([NOT_HELD], [IN_FLIGHT])


def test_clearing_the_device_tier_ends_what_finished_requests_left_there() -> None:
    view, events = new_view(1), Publisher()
    finished = Dispatch(prompt([10, 11]), request_id="finished")
    finished.record(view)
    view.record_receipt(finished.plan(), finished.receipt(), NOW_S)
    Dispatch(prompt([20, 21]), request_id="flying").record(view)
    view.apply_kv_events([events.cleared()], NOW_S)
    assert (device_blocks(view, [10, 11]), device_blocks(view, [20, 21])) == ([0], [2])


# ---- receipts ----


def test_a_segment_that_the_target_did_not_keep_is_not_expected_any_more() -> None:
    view = new_view(1)
    dispatch = Dispatch(prompt(segments=["a", "b"]), computed=[0, 1])
    dispatch.record(view)
    view.record_receipt(dispatch.plan(), dispatch.receipt(stored=[1]), NOW_S)
    assert (segment_states(view, "a"), segment_states(view, "b")) == ([NOT_HELD], [UNCONFIRMED])


def test_a_segment_that_the_target_kept_unasked_is_expected() -> None:
    view = new_view(1)
    dispatch = Dispatch(prompt(segments=["a"]))
    dispatch.record(view)
    view.record_receipt(dispatch.plan(), dispatch.receipt(stored=[0]), NOW_S)
    assert segment_states(view, "a") == [UNCONFIRMED]


def test_a_receipt_after_the_claim_has_expired_still_tells_what_is_kept() -> None:
    view = new_view(1)
    dispatch = Dispatch(prompt(segments=["a", "b"]), computed=[0])
    dispatch.record(view)
    view.expire(LATE_S)
    view.record_receipt(dispatch.plan(), dispatch.receipt(stored=[0]), LATE_S)
    assert (segment_states(view, "a", LATE_S), segment_states(view, "b", LATE_S)) == ([UNCONFIRMED], [NOT_HELD])


def test_a_receipt_does_not_bring_back_what_events_have_removed_since() -> None:
    view, events = new_view(1), Publisher()
    dispatch = Dispatch(prompt(segments=["a"]), computed=[0])
    dispatch.record(view)
    view.apply_pic_events(events.segment_stored("a"), NOW_S)
    view.apply_pic_events(events.segment_removed("a"), NOW_S)
    view.record_receipt(dispatch.plan(), dispatch.receipt(stored=[0]), NOW_S)
    assert segment_states(view, "a") == [NOT_HELD]


def test_a_local_hit_that_was_not_there_leaves_the_view() -> None:
    view = new_view(1)
    view.apply_pic_events(Publisher().segment_stored("a"), NOW_S)
    dispatch = Dispatch(prompt(segments=["a"]), sources={0: (Source.LOCAL, 1)})
    dispatch.record(view)
    view.record_receipt(dispatch.plan(), dispatch.receipt(fallbacks={0: FallbackReason.NOT_THERE}), NOW_S)
    assert segment_states(view, "a") == [NOT_HELD]


def test_a_local_hit_that_was_not_there_but_was_kept_again_stays() -> None:
    view = new_view(1)
    view.apply_pic_events(Publisher().segment_stored("a"), NOW_S)
    dispatch = Dispatch(prompt(segments=["a"]), sources={0: (Source.LOCAL, 1)})
    dispatch.record(view)
    receipt = dispatch.receipt(stored=[0], fallbacks={0: FallbackReason.NOT_THERE})
    view.record_receipt(dispatch.plan(), receipt, NOW_S)
    assert segment_states(view, "a") == [STORED]


def test_a_source_that_said_no_does_not_have_the_segment() -> None:
    view = new_view(2)
    view.apply_pic_events(Publisher(2).segment_stored("a"), NOW_S)
    dispatch = Dispatch(prompt(segments=["a"]), copied=[0], sources={0: (Source.FETCH, 2)})
    dispatch.record(view)
    receipt = dispatch.receipt(stored=[0], fallbacks={0: FallbackReason.NOT_THERE})
    view.record_receipt(dispatch.plan(), receipt, NOW_S)
    assert segment_states(view, "a") == [UNCONFIRMED, NOT_HELD]


def test_a_source_that_was_only_late_keeps_its_entry() -> None:
    view = new_view(2)
    view.apply_pic_events(Publisher(2).segment_stored("a"), NOW_S)
    dispatch = Dispatch(prompt(segments=["a"]), sources={0: (Source.FETCH, 2)})
    dispatch.record(view)
    view.record_receipt(dispatch.plan(), dispatch.receipt(fallbacks={0: FallbackReason.LATE}), NOW_S)
    assert segment_states(view, "a") == [NOT_HELD, STORED]


def test_a_helper_that_is_done_has_its_segments_unconfirmed() -> None:
    view = new_view(2)
    Dispatch(prompt(segments=["a"]), helpers={2: [0]}).record(view)
    view.record_helper_done(RequestId("request"), worker(2), NOW_S + 1)
    assert segment_states(view, "a", NOW_S + 1) == [NOT_HELD, UNCONFIRMED]
    assert segment_states(view, "a", NOW_S + 1 + TTL_S) == [NOT_HELD, NOT_HELD]


def test_a_helpers_own_receipt_counts_for_the_helper() -> None:
    view = new_view(2)
    dispatch = Dispatch(prompt(segments=["a", "b"]), helpers={2: [0, 1]})
    dispatch.record(view)
    view.record_receipt(dispatch.plan(), dispatch.receipt(stored=[1], by=worker(2)), NOW_S)
    assert (segment_states(view, "a"), segment_states(view, "b")) == ([NOT_HELD] * 2, [NOT_HELD, UNCONFIRMED])


def test_deeds_for_workers_that_left_are_ignored() -> None:
    view = new_view(2)
    dispatch = Dispatch(prompt([10], ["a"]), target=1, computed=[0], helpers={2: [0]})
    cover(view, dispatch.layout)
    view.remove_worker(WorkerId(1))
    view.remove_worker(WorkerId(2))
    view.record_dispatch(dispatch.layout, dispatch.answer())
    view.record_receipt(dispatch.plan(), dispatch.receipt(stored=[0]), NOW_S)
    view.record_helper_done(RequestId("request"), worker(2), NOW_S)
    view.record_failure(RequestId("request"), worker(1))
    view.postpone(RequestId("request"), worker(1), NOW_S)
    assert (view.num_entries, view.num_claims) == (0, 0)


def test_a_worker_that_leaves_takes_its_claims_along() -> None:
    view = new_view(2)
    Dispatch(prompt([10], ["a"]), target=1, computed=[0], helpers={2: [0]}).record(view)
    view.remove_worker(WorkerId(1))
    assert segment_states(view, "a") == [IN_FLIGHT]
    assert view.num_claims == 1
    view.remove_worker(WorkerId(2))
    assert (view.num_entries, view.num_claims) == (0, 0)


def test_a_segment_is_held_elsewhere_when_another_worker_has_or_expects_it() -> None:
    view = new_view(2)
    name = segment_hash("a")
    assert not view.is_held_elsewhere(DOMAIN_ID, name, worker(1))
    view.apply_pic_events(Publisher(1).segment_stored("a"), NOW_S)
    assert not view.is_held_elsewhere(DOMAIN_ID, name, worker(1))
    assert view.is_held_elsewhere(DOMAIN_ID, name, worker(2))
    Dispatch(prompt(segments=["a"]), target=2, computed=[0]).record(view)
    assert view.is_held_elsewhere(DOMAIN_ID, name, worker(1))


def test_a_dispatch_may_come_long_after_the_coverage_it_was_planned_on() -> None:
    view = new_view(2)
    dispatch = Dispatch(prompt([10, 11, 12]))
    cover(view, dispatch.layout)
    view.apply_kv_events([Publisher(2).stored([10, 11])], NOW_S)
    view.record_dispatch(dispatch.layout, dispatch.answer())
    assert device_blocks(view, [10, 11, 12]) == [3, 2]
