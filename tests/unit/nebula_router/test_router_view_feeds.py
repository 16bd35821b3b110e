"""Members of the merged view, and how it keeps their events complete."""

import pytest
from msgspec.structs import replace
from support.placement_case import round_card, worker
from support.view_world import (
    DOMAIN_ID,
    NOW_S,
    Dispatch,
    Publisher,
    cover,
    device_blocks,
    entry,
    new_view,
    prompt,
    segment_states,
    tier_blocks,
)

from nebula_protocol.errors import DecodeError
from nebula_protocol.ids import DpRank, EventId, Role, WorkerId, WorkerWithDpRank
from nebula_protocol.subjects import Topic
from nebula_router.core.block_names import GRACE_S
from nebula_router.core.coverage import IN_FLIGHT, NOT_HELD, STORED
from nebula_router.core.evidence import GapReason, LostSegment
from nebula_router.core.holders import TooManyWorkersError
from nebula_router.core.view import ClusterView

ONE = WorkerId(1)
ONLY_ONE = frozenset({ONE})
NOBODY: frozenset[WorkerId] = frozenset()


def empty_view() -> ClusterView:
    return ClusterView(max_entries=1000, max_holders=4, ttl_s=5.0)


def test_a_worker_is_known_by_its_first_state() -> None:
    view = empty_view()
    view.begin_state(ONE)
    assert (view.worker_ids(), view.needs_state(), view.num_workers) == (ONLY_ONE, ONLY_ONE, 0)
    view.apply_state(Publisher().state([entry(10, None), entry(11, 10)], ["a"]), NOW_S)
    assert (view.worker_ids(), view.needs_state(), view.num_workers) == (ONLY_ONE, NOBODY, 1)
    assert (device_blocks(view, [10, 11]), segment_states(view, "a")) == ([2], [STORED])
    assert (view.num_blocks, view.num_segments) == (2, 1)


def test_events_while_the_first_state_is_awaited_are_applied_behind_it() -> None:
    view, events = empty_view(), Publisher()
    view.begin_state(ONE)
    view.apply_kv_events([events.stored([10])], NOW_S)
    view.apply_pic_events(events.segment_stored("a"), NOW_S)
    state = events.state([entry(10, None)], ["a"])
    view.apply_kv_events([events.stored([11], parent=10)], NOW_S)
    view.apply_pic_events(events.segment_removed("a"), NOW_S)
    view.apply_state(state, NOW_S)
    assert (device_blocks(view, [10, 11]), segment_states(view, "a")) == ([2], [NOT_HELD])
    assert not view.needs_state()


def test_a_repeated_event_changes_nothing() -> None:
    view, events = new_view(1), Publisher()
    stored, removed = events.stored([10]), events.removed([10])
    view.apply_kv_events([stored, removed], NOW_S)
    applied = view.apply_kv_events([stored], NOW_S)
    assert (applied.num_stored, applied.num_ignored_events) == (0, 1)
    assert device_blocks(view, [10]) == [0]


def test_a_jump_of_event_ids_asks_for_the_state_and_is_told_once() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10])], NOW_S)
    events.stored([11])
    (gap,) = view.apply_kv_events([events.stored([20])], NOW_S).gaps
    assert (gap.worker_id, gap.topic, gap.reason) == (1, Topic.KV_EVENTS, GapReason.LOST_EVENTS)
    assert (gap.expected, gap.got) == (1, 2)
    events.stored([12])
    assert view.apply_kv_events([events.stored([30])], NOW_S).gaps == ()
    assert view.needs_state() == ONLY_ONE


def test_events_behind_a_gap_count_until_the_state_comes() -> None:
    view, events = new_view(1), Publisher()
    events.stored([10])
    view.apply_kv_events([events.stored([20])], NOW_S)
    assert device_blocks(view, [20]) == [1]


def test_a_gap_of_segment_events_is_repaired_by_the_state() -> None:
    view, events = new_view(1), Publisher()
    view.apply_pic_events(events.segment_stored("a"), NOW_S)
    events.segment_removed("a")
    (gap,) = view.apply_pic_events(events.segment_stored("b"), NOW_S).gaps
    assert gap.topic is Topic.PIC_EVENTS
    view.apply_state(events.state(segments=["b"]), NOW_S)
    assert (segment_states(view, "a"), segment_states(view, "b")) == ([NOT_HELD], [STORED])
    assert not view.needs_state()


def test_events_between_the_state_and_its_arrival_are_not_lost_in_a_repair() -> None:
    view, events = new_view(1), Publisher()
    events.stored([10])
    view.apply_kv_events([events.stored([20])], NOW_S)
    state = events.state([entry(10, None), entry(20, None)])
    view.apply_pic_events(events.segment_stored("a"), NOW_S)
    view.apply_kv_events([events.removed([10])], NOW_S)
    view.apply_state(state, NOW_S)
    assert (device_blocks(view, [10]), device_blocks(view, [20])) == ([0], [1])
    assert segment_states(view, "a") == [STORED]


def test_a_state_that_nobody_asked_for_and_that_is_too_old_asks_for_another() -> None:
    view, events = new_view(1), Publisher()
    state = events.state()
    view.apply_kv_events([events.stored([10])], NOW_S)
    (gap,) = view.apply_state(state, NOW_S).gaps
    assert gap.reason is GapReason.LOST_EVENTS
    assert view.needs_state() == ONLY_ONE
    view.apply_state(events.state([entry(10, None)]), NOW_S)
    assert (view.needs_state(), device_blocks(view, [10])) == (NOBODY, [1])


def test_a_state_replaces_what_was_there_and_keeps_what_is_in_flight() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10]), events.stored([20])], NOW_S)
    Dispatch(prompt([30, 31], ["a"]), computed=[0]).record(view)
    view.apply_state(events.state([entry(20, None), entry(30, None)]), NOW_S)
    assert [device_blocks(view, blocks) for blocks in ([10], [20], [30, 31])] == [[0], [1], [2]]
    assert segment_states(view, "a") == [IN_FLIGHT]


def test_blocks_of_a_state_lie_in_the_tiers_it_says() -> None:
    view, events = new_view(1), Publisher()
    view.apply_state(events.state([entry(10, None, tiers=3), entry(11, 10, tiers=1), entry(12, 11, tiers=2)]), NOW_S)
    assert (device_blocks(view, [10, 11, 12]), tier_blocks(view, [10, 11, 12])) == ([2], [3])


def test_a_state_may_branch() -> None:
    view, events = new_view(1), Publisher()
    tree = [entry(1, None), entry(2, 1), entry(3, 2), entry(4, 1), entry(5, 4), entry(6, None)]
    view.apply_state(events.state(tree), NOW_S)
    assert [device_blocks(view, blocks) for blocks in ([1, 2, 3], [1, 4, 5], [6])] == [[3], [3], [1]]


def test_events_continue_the_chains_of_a_state() -> None:
    view, events = new_view(1), Publisher()
    view.apply_state(events.state([entry(500, None, tokens=10), entry(501, 500, tokens=11)]), NOW_S)
    view.apply_kv_events([events.stored([502], blocks=[12], parent=501)], NOW_S)
    assert device_blocks(view, [10, 11, 12]) == [3]


def test_a_block_whose_parent_the_worker_has_lost_keeps_its_known_place() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10, 11, 12])], NOW_S)
    view.apply_state(events.state([entry(11, 10), entry(12, 11)]), NOW_S)
    assert device_blocks(view, [10, 11, 12]) == [0]
    view.apply_kv_events([events.stored([10])], NOW_S)
    assert device_blocks(view, [10, 11, 12]) == [3]


def test_a_block_keeps_its_place_even_when_nobody_remembers_its_parent() -> None:
    view, events = new_view(1, store_capacity_tokens=0), Publisher()
    view.apply_kv_events([events.stored([10, 11, 12]), events.removed([10])], NOW_S)
    view.apply_state(events.state([entry(11, 10), entry(12, 11)], card=round_card(1, store_capacity_tokens=0)), NOW_S)
    view.apply_kv_events([events.stored([10])], NOW_S)
    assert device_blocks(view, [10, 11, 12]) == [3]


def test_a_block_that_continues_a_remembered_chain_has_its_place() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10])], NOW_S)
    view.apply_state(events.state([entry(11, 10)]), NOW_S)
    view.apply_kv_events([events.stored([10])], NOW_S)
    assert device_blocks(view, [10, 11]) == [2]


def test_a_block_without_a_known_place_is_no_hit_and_no_reason_to_ask_again() -> None:
    view, events = new_view(1), Publisher()
    view.apply_state(events.state([entry(11, 10), entry(12, 11)]), NOW_S)
    assert view.num_entries == 0
    view.apply_kv_events([events.stored([13], parent=12)], NOW_S + 1)
    view.apply_kv_events([events.stored([14], parent=13)], NOW_S + 2)
    assert (view.num_entries, view.needs_state()) == (0, NOBODY)


def test_an_unknown_chain_asks_for_the_state_but_not_again_and_again() -> None:
    view, events = new_view(1), Publisher()
    (gap,) = view.apply_kv_events([events.stored([11], parent=10)], NOW_S).gaps
    assert gap.reason is GapReason.UNKNOWN_PARENT
    view.apply_state(events.state(), NOW_S)
    assert view.apply_kv_events([events.stored([21], parent=20)], NOW_S + 59).gaps == ()
    assert len(view.apply_kv_events([events.stored([31], parent=30)], NOW_S + 61).gaps) == 1


def test_a_state_must_be_whole() -> None:
    view, (chunk,) = new_view(1), Publisher().state([entry(10, None)])
    unfinished = replace(chunk, last=False)
    another = replace(chunk, snapshot_id=chunk.snapshot_id + 1)
    for chunks in ([], [unfinished], [unfinished, another]):
        with pytest.raises(DecodeError):
            view.apply_state(chunks, NOW_S)
    assert view.num_entries == 0


def test_chunks_of_several_schedulers_go_to_their_own() -> None:
    view = empty_view()
    card = round_card(1, dp_size=2)
    first = Publisher(1, dp_rank=0).state([entry(10, None)], card=card)
    second = Publisher(1, dp_rank=1).state([entry(20, None)], card=card)
    view.apply_state(first + second, NOW_S)
    assert (device_blocks(view, [10]), device_blocks(view, [20])) == ([1, 0], [0, 1])


def test_a_scheduler_without_a_chunk_has_nothing() -> None:
    view, events = new_view(1, dp_size=2), Publisher(1, dp_rank=1)
    view.apply_kv_events([events.stored([10])], NOW_S)
    view.apply_state(Publisher(1, dp_rank=0).state(card=round_card(1, dp_size=2)), NOW_S)
    assert device_blocks(view, [10]) == [0, 0]


def test_another_epoch_is_another_worker() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10])], NOW_S)
    Dispatch(prompt([20])).record(view)
    restarted = Publisher(epoch=2)
    (gap,) = view.apply_pic_events(restarted.segment_stored("a"), NOW_S).gaps
    assert gap.reason is GapReason.RESTARTED
    assert (view.num_entries, view.num_claims, view.num_workers, view.needs_state()) == (0, 0, 0, ONLY_ONE)
    view.apply_state(restarted.state(segments=["a"]), NOW_S)
    assert (segment_states(view, "a"), view.needs_state()) == ([STORED], NOBODY)
    view.apply_kv_events([restarted.stored([30])], NOW_S)
    assert (device_blocks(view, [30]), view.needs_state()) == ([1], NOBODY)


def test_a_state_of_another_epoch_replaces_the_worker() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10])], NOW_S)
    view.apply_state(Publisher(epoch=2).state([entry(20, None)]), NOW_S)
    assert (device_blocks(view, [10]), device_blocks(view, [20])) == ([0], [1])
    assert not view.needs_state()


def test_a_receipt_of_another_epoch_tells_of_a_restart() -> None:
    view = new_view(1)
    dispatch = Dispatch(prompt([10]))
    dispatch.record(view)
    view.record_receipt(dispatch.plan(), dispatch.receipt(epoch=2), NOW_S)
    assert (view.num_entries, view.num_workers, view.needs_state()) == (0, 0, ONLY_ONE)
    assert [gap.reason for gap in view.apply_kv_events([], NOW_S).gaps] == [GapReason.RESTARTED]


def test_events_that_a_receipt_names_must_come() -> None:
    view, events = new_view(1), Publisher()
    dispatch = Dispatch(prompt([10]))
    dispatch.record(view)
    stored = events.stored([10])
    receipt = dispatch.receipt(last_event_ids=events.last_event_ids())
    view.record_receipt(dispatch.plan(), receipt, NOW_S)
    view.expire(NOW_S + GRACE_S - 0.1)
    assert not view.needs_state()
    view.expire(NOW_S + GRACE_S + 1)
    assert view.needs_state() == ONLY_ONE
    (gap,) = view.apply_kv_events([stored], NOW_S + GRACE_S + 1).gaps
    assert (gap.reason, gap.topic) == (GapReason.MISSING_TAIL, Topic.KV_EVENTS)


def test_the_view_tells_which_events_it_is_based_on() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10]), events.stored([11])], NOW_S)
    assert view.last_event_ids(worker(1)) == {Topic.KV_EVENTS: EventId(1), Topic.PIC_EVENTS: EventId(-1)}
    assert view.last_event_ids(worker(9)) == {}


def test_a_decode_worker_holds_nothing() -> None:
    view, events = empty_view(), Publisher()
    view.apply_state(events.state([entry(10, None)], card=round_card(1, role=Role.DECODE)), NOW_S)
    view.apply_kv_events([events.stored([11])], NOW_S)
    view.apply_pic_events(events.segment_stored("a"), NOW_S)
    assert (view.worker_ids(), view.num_workers, view.num_entries) == (ONLY_ONE, 0, 0)
    assert view.profiles() == ()


def test_events_of_unknown_workers_are_ignored() -> None:
    view, events = empty_view(), Publisher()
    assert view.apply_kv_events([events.stored([10])], NOW_S).num_ignored_events == 1
    assert view.apply_pic_events(events.segment_stored("a"), NOW_S).num_ignored_events == 1
    assert (view.num_entries, view.worker_ids()) == (0, NOBODY)


def test_a_worker_beyond_the_bound_is_refused_and_leaves_no_trace() -> None:
    view = view_of(2)
    with pytest.raises(TooManyWorkersError):
        view.add_worker(round_card(9, dp_size=3))
    assert view.worker_ids() == {1, 2}
    view.add_worker(round_card(9, dp_size=2))
    assert view.num_workers == 4


def view_of(num_workers: int) -> ClusterView:
    view = empty_view()
    for worker_id in range(1, num_workers + 1):
        view.add_worker(round_card(worker_id))
    return view


def test_profiles_come_in_the_order_of_workers() -> None:
    view = empty_view()
    for worker_id in (3, 1):
        view.add_worker(round_card(worker_id))
    view.add_worker(round_card(2, dp_size=2))
    expected = [worker(1), worker(2), WorkerWithDpRank(WorkerId(2), DpRank(1)), worker(3)]
    assert [profile.worker for profile in view.profiles()] == expected
    assert cover(view, prompt([10])).holders == tuple(expected)


def test_the_last_copy_of_a_segment_is_told_as_lost() -> None:
    view, first, second = new_view(2), Publisher(1), Publisher(2)
    view.apply_pic_events(first.segment_stored("a"), NOW_S)
    view.apply_pic_events(second.segment_stored("a"), NOW_S)
    assert view.apply_pic_events(first.segment_removed("a"), NOW_S).lost == ()
    (lost,) = view.apply_pic_events(second.segment_removed("a"), NOW_S).lost
    assert isinstance(lost, LostSegment)
    assert (lost.domain_id, lost.num_tokens) == (DOMAIN_ID, 100)


def test_a_segment_that_is_not_known_can_be_removed() -> None:
    view = new_view(1)
    applied = view.apply_pic_events(Publisher().segment_removed("a"), NOW_S)
    assert (applied.num_removed, applied.lost) == (0, ())
