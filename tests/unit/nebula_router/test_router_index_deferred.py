"""Blocks of dispatched prompts that nobody has yet are claimed as one run; nothing of that shows from outside."""

from support.placement_case import worker
from support.view_world import NOW_S, TTL_S, Dispatch, Publisher, device_blocks, entry, new_view, prompt

from nebula_protocol.ids import RequestId

PATH = [10, 11, 12, 13]


def test_a_new_prompts_blocks_are_not_entered_one_by_one() -> None:
    view = new_view(1)
    Dispatch(prompt(PATH)).record(view)
    assert (view.num_entries, view.num_claims) == (0, 1)
    assert device_blocks(view, [99]) == [0]
    assert view.num_entries == 0


def test_they_are_entered_when_a_prompt_reaches_them() -> None:
    view = new_view(1)
    Dispatch(prompt(PATH)).record(view)
    assert device_blocks(view, [10, 77]) == [1]
    assert view.num_entries == 4


def test_they_are_seen_when_another_worker_stores_some_of_them() -> None:
    view = new_view(2)
    Dispatch(prompt(PATH)).record(view)
    view.apply_kv_events([Publisher(2).stored([10, 11])], NOW_S)
    assert device_blocks(view, PATH) == [4, 2]


def test_they_are_seen_when_another_workers_state_has_some_of_them() -> None:
    view = new_view(2)
    Dispatch(prompt(PATH)).record(view)
    view.apply_state(Publisher(2).state([entry(10, None), entry(11, 10)]), NOW_S)
    assert device_blocks(view, PATH) == [4, 2]


def test_they_shrink_as_their_worker_stores_them() -> None:
    view, events = new_view(1), Publisher()
    Dispatch(prompt(PATH)).record(view)
    view.apply_kv_events([events.stored([10, 11])], NOW_S)
    assert view.num_entries == 2
    assert device_blocks(view, PATH) == [4]
    view.apply_kv_events([events.stored([12, 13], parent=11)], NOW_S)
    view.record_failure(RequestId("request"), worker(1))
    assert (view.num_entries, device_blocks(view, PATH)) == (4, [4])


def test_a_stored_prompt_that_leaves_the_claimed_one_takes_only_the_common_blocks() -> None:
    view, events = new_view(1), Publisher()
    Dispatch(prompt(PATH)).record(view)
    view.apply_kv_events([events.stored([1, 2, 3], blocks=[10, 11, 99])], NOW_S)
    assert (device_blocks(view, PATH), device_blocks(view, [10, 11, 99])) == ([4], [3])
    view.record_failure(RequestId("request"), worker(1))
    assert device_blocks(view, PATH) == [2]


def test_a_stored_prompt_of_another_beginning_takes_none() -> None:
    view, events = new_view(1), Publisher()
    Dispatch(prompt(PATH)).record(view)
    view.apply_kv_events([events.stored([1, 2], blocks=[99, 11])], NOW_S)
    assert device_blocks(view, PATH) == [4]


def test_two_claims_may_come_to_begin_at_the_same_block() -> None:
    view, events = new_view(1, store_capacity_tokens=0), Publisher()
    view.apply_kv_events([events.stored([10, 11])], NOW_S)
    Dispatch(prompt(PATH), request_id="behind").record(view)
    view.apply_kv_events([events.removed([11, 10])], NOW_S)
    Dispatch(prompt(PATH), request_id="whole").record(view)
    # Both now have nothing but the last two blocks outstanding.
    view.apply_kv_events([events.stored([10, 11])], NOW_S)
    assert device_blocks(view, PATH) == [4]
    view.record_failure(RequestId("whole"), worker(1))
    assert device_blocks(view, PATH) == [4]
    view.record_failure(RequestId("behind"), worker(1))
    assert device_blocks(view, PATH) == [2]


def test_a_run_that_begins_inside_another_is_entered_with_it() -> None:
    view, events = new_view(2, store_capacity_tokens=0), Publisher(1)
    view.apply_kv_events([events.stored([10, 11])], NOW_S)
    Dispatch(prompt(PATH), target=1, request_id="behind").record(view)
    view.apply_kv_events([events.removed([11, 10])], NOW_S)
    Dispatch(prompt(PATH), target=2, request_id="whole").record(view)
    assert device_blocks(view, PATH) == [0, 4]
    view.apply_kv_events([events.stored([10, 11])], NOW_S)
    assert device_blocks(view, PATH) == [4, 4]


def test_a_failure_before_anybody_got_there_leaves_nothing() -> None:
    view = new_view(1)
    Dispatch(prompt(PATH)).record(view)
    view.record_failure(RequestId("request"), worker(1))
    assert device_blocks(view, PATH) == [0]
    assert view.num_entries == 0


def test_a_failure_after_somebody_got_there_leaves_nothing_either() -> None:
    view = new_view(1)
    Dispatch(prompt(PATH)).record(view)
    assert device_blocks(view, PATH) == [4]
    view.record_failure(RequestId("request"), worker(1))
    assert view.num_entries == 0


# ---- which claim stands for a block ----


def test_a_block_stays_expected_as_long_as_one_request_expects_it() -> None:
    view = new_view(1)
    for request_id in ("first", "second"):
        Dispatch(prompt(PATH), request_id=request_id).record(view)
    view.record_failure(RequestId("second"), worker(1))
    assert device_blocks(view, PATH) == [4]
    view.record_failure(RequestId("first"), worker(1))
    assert device_blocks(view, PATH) == [0]


def test_a_request_whose_block_was_stored_does_not_expect_it_a_second_time() -> None:
    view, events, other = new_view(2, store_capacity_tokens=0), Publisher(1), Publisher(2)
    view.apply_kv_events([other.stored(PATH)], NOW_S)
    Dispatch(prompt(PATH), request_id="first").record(view)
    view.apply_kv_events([events.stored(PATH), events.removed(PATH)], NOW_S)
    Dispatch(prompt(PATH), request_id="second").record(view)
    view.record_failure(RequestId("second"), worker(1))
    assert device_blocks(view, PATH) == [0, 4]


def test_a_finished_request_whose_block_was_evicted_does_not_expect_it_any_more() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored(PATH)], NOW_S)
    view.apply_pic_events(events.host_stored(PATH), NOW_S)
    view.apply_kv_events([events.removed(PATH)], NOW_S)
    finished = Dispatch(prompt(PATH), request_id="finished")
    finished.record(view)
    view.record_receipt(finished.plan(), finished.receipt(), NOW_S)
    Dispatch(prompt(PATH), request_id="flying").record(view)
    view.apply_kv_events([events.removed([13])], NOW_S)
    assert device_blocks(view, PATH) == [4]
    view.record_failure(RequestId("flying"), worker(1))
    assert device_blocks(view, PATH) == [3]


def test_claims_of_blocks_that_made_room_do_not_touch_what_came_in_their_place() -> None:
    view, events = new_view(2, max_entries=8), Publisher(2)
    Dispatch(prompt(PATH)).record(view)
    assert device_blocks(view, PATH) == [4, 0]
    # Eight newer entries take every row.
    for name in range(100, 108):
        view.apply_kv_events([events.stored([name])], NOW_S)
    view.expire(NOW_S + 2 + TTL_S)
    assert view.num_entries == 8
    assert [device_blocks(view, [name]) for name in range(100, 108)] == [[0, 1]] * 8


def test_a_prompt_longer_than_half_of_the_bound_is_claimed_from_the_front() -> None:
    view = new_view(1, max_entries=8)
    Dispatch(prompt(range(10, 30))).record(view)
    assert device_blocks(view, range(10, 30)) == [4]


def test_a_block_of_the_store_that_has_no_place_is_no_reason_to_ask_for_the_state() -> None:
    view, events = new_view(1), Publisher()
    view.apply_state(events.state([entry(11, 10, tiers=1)]), NOW_S)
    view.apply_pic_events(events.host_stored([11]), NOW_S)
    view.expire(NOW_S + 60)
    assert not view.needs_state()
