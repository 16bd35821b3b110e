"""Prefix blocks in the merged view: what events of both topics make of it."""

import pytest
from support.placement_case import BLOCK, round_card
from support.view_world import (
    DOMAIN_ID,
    NOW_S,
    Publisher,
    cover,
    device_blocks,
    new_view,
    prompt,
    tier_blocks,
)

from nebula_protocol.domain import Domain, tenant_domain
from nebula_protocol.events import KvEvent, KvEventData, StoreCleared, WorkerKvEvent
from nebula_protocol.ids import DpRank, EventId, RemovalReason, WorkerId, WorkerWithDpRank
from nebula_router.core.block_names import GRACE_S
from nebula_router.core.evidence import LostBlocks
from nebula_router.core.view import ClusterView


def test_stored_blocks_are_hits_at_their_worker_only() -> None:
    view, events = new_view(2), Publisher(worker_id=2)
    applied = view.apply_kv_events([events.stored([10, 11, 12])], NOW_S)
    assert applied.num_stored == 3
    assert device_blocks(view, [10, 11, 12, 13]) == [0, 3]
    assert tier_blocks(view, [10, 11, 12, 13]) == [0, 3]


def test_coverage_counts_tokens_of_whole_blocks() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10, 11])], NOW_S)
    # 2 blocks of 16 tokens.
    assert cover(view, prompt([10, 11])).prefix_device_tokens.tolist() == [2 * BLOCK]


def test_a_block_counts_only_behind_the_same_blocks() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10, 11])], NOW_S)
    assert device_blocks(view, [11]) == [0]
    assert device_blocks(view, [12, 11]) == [0]


def test_a_stored_event_continues_its_parents_chain() -> None:
    view, events = new_view(1), Publisher()
    first = events.stored([500, 501], blocks=[10, 11])
    second = events.stored([777], blocks=[12], parent=501)
    view.apply_kv_events([first, second], NOW_S)
    assert device_blocks(view, [10, 11, 12]) == [3]


def test_workers_name_the_same_blocks_as_they_like() -> None:
    view = new_view(2)
    view.apply_kv_events([Publisher(1).stored([1, 2], blocks=[10, 11])], NOW_S)
    view.apply_kv_events([Publisher(2).stored([8, 9], blocks=[10, 11])], NOW_S)
    assert device_blocks(view, [10, 11]) == [2, 2]
    assert view.num_entries == 2


def test_the_leading_run_ends_at_the_first_block_that_is_missing() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10, 11, 12]), events.removed([11])], NOW_S)
    assert device_blocks(view, [10, 11, 12]) == [1]


def test_a_missing_block_that_comes_back_joins_the_rest_again() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10, 11, 12]), events.removed([11])], NOW_S)
    view.apply_kv_events([events.stored([11], parent=10)], NOW_S)
    assert device_blocks(view, [10, 11, 12]) == [3]


def test_removing_all_blocks_leaves_nothing() -> None:
    view, events = new_view(1, store_capacity_tokens=0), Publisher()
    view.apply_kv_events([events.stored([10, 11]), events.stored([20])], NOW_S)
    applied = view.apply_kv_events([events.removed([11]), events.removed([20, 10])], NOW_S)
    assert applied.num_removed == 3
    assert view.num_entries == 0


def test_clearing_the_device_tier_leaves_what_the_store_has() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10, 11])], NOW_S)
    view.apply_pic_events(events.host_stored([10]), NOW_S)
    view.apply_kv_events([events.cleared()], NOW_S)
    assert device_blocks(view, [10, 11]) == [0]
    assert tier_blocks(view, [10, 11]) == [1]
    assert view.num_entries == 1


def test_a_block_in_the_store_is_a_hit_of_the_slower_kind() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10, 11])], NOW_S)
    view.apply_pic_events(events.host_stored([11]), NOW_S)
    view.apply_kv_events([events.removed([11])], NOW_S)
    assert device_blocks(view, [10, 11]) == [1]
    assert tier_blocks(view, [10, 11]) == [2]


def test_the_store_may_tell_of_a_block_after_the_device_tier_has_dropped_it() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10]), events.removed([10])], NOW_S)
    assert tier_blocks(view, [10]) == [0]
    view.apply_pic_events(events.host_stored([10]), NOW_S + GRACE_S / 2)
    assert tier_blocks(view, [10], NOW_S + GRACE_S / 2) == [1]


def test_a_block_that_the_store_does_not_take_is_forgotten_after_a_while() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10]), events.removed([10])], NOW_S)
    view.expire(NOW_S + GRACE_S - 0.1)
    assert view.num_entries == 1
    view.expire(NOW_S + GRACE_S + 1)
    assert view.num_entries == 0


def test_the_store_may_tell_of_a_block_before_the_device_tier_announces_it() -> None:
    view, events = new_view(1), Publisher()
    view.apply_pic_events(events.host_stored([10]), NOW_S)
    view.apply_kv_events([events.stored([10]), events.removed([10])], NOW_S)
    assert tier_blocks(view, [10]) == [1]


def test_a_block_of_the_store_that_is_never_announced_asks_for_the_state() -> None:
    view, events = new_view(1), Publisher()
    view.apply_pic_events(events.host_stored([10]), NOW_S)
    view.expire(NOW_S + GRACE_S - 0.1)
    assert not view.needs_state()
    view.expire(NOW_S + GRACE_S + 1)
    assert view.needs_state() == {1}


def test_the_last_copy_that_leaves_a_store_is_told_as_lost_with_its_reason() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10, 11])], NOW_S)
    view.apply_pic_events(events.host_stored([10, 11]), NOW_S)
    view.apply_kv_events([events.removed([10, 11])], NOW_S)
    (lost,) = view.apply_pic_events(events.host_removed([11], RemovalReason.CAPACITY), NOW_S).lost
    assert isinstance(lost, LostBlocks)
    assert (lost.depths, lost.block_size_tokens, lost.reason) == ((1,), BLOCK, RemovalReason.CAPACITY)


def test_a_copy_elsewhere_or_on_the_device_is_not_lost() -> None:
    view, first, second = new_view(2), Publisher(1), Publisher(2)
    view.apply_kv_events([first.stored([10, 11])], NOW_S)
    view.apply_kv_events([second.stored([10])], NOW_S)
    view.apply_pic_events(first.host_stored([10, 11]), NOW_S)
    view.apply_kv_events([first.removed([10])], NOW_S)
    assert view.apply_pic_events(first.host_removed([10, 11]), NOW_S).lost == ()


def test_clearing_the_store_leaves_the_device_tier() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10, 11])], NOW_S)
    view.apply_pic_events(events.host_stored([10, 11]), NOW_S)
    view.apply_kv_events([events.removed([11])], NOW_S)
    view.apply_pic_events(events.segment_stored("passage"), NOW_S)
    view.apply_pic_events(events.pic(StoreCleared()), NOW_S)
    assert tier_blocks(view, [10, 11]) == [1]
    assert view.num_entries == 1


def test_tiers_that_dynamo_knows_below_the_device_count_as_the_store() -> None:
    view, events = new_view(1), Publisher()
    view.apply_kv_events([events.stored([10], storage_tier="host_pinned")], NOW_S)
    assert (device_blocks(view, [10]), tier_blocks(view, [10])) == ([0], [1])
    view.apply_kv_events([events.removed([10], storage_tier="host_pinned")], NOW_S)
    assert view.num_entries == 0


def test_schedulers_of_one_worker_hold_apart() -> None:
    view = new_view(1, dp_size=2)
    view.apply_kv_events([Publisher(1, dp_rank=1).stored([10])], NOW_S)
    assert device_blocks(view, [10]) == [0, 1]


def test_events_of_a_scheduler_that_the_worker_does_not_have_change_nothing() -> None:
    view = new_view(1)
    view.apply_kv_events([Publisher(1, dp_rank=7).stored([10])], NOW_S)
    assert view.num_entries == 0


def test_domains_do_not_share_prefixes() -> None:
    view = new_view(1)
    other = Domain(model="another", block_size_tokens=BLOCK)
    view.add_worker(round_card(2, domain=other))
    view.apply_kv_events([Publisher(2).stored([10])], NOW_S)
    holders = tuple(profile.worker for profile in view.profiles())
    assert view.coverage(prompt([10]), DOMAIN_ID, holders, NOW_S).prefix_tokens.tolist() == [0, 0]
    assert view.coverage(prompt([10]), other.domain_id, holders, NOW_S).prefix_tokens.tolist() == [0, BLOCK]


def test_a_tenants_blocks_are_looked_up_in_the_workers_domain() -> None:
    # What keeps tenants apart is the lineage that is part of their blocks' hashes.
    view = new_view(1)
    view.apply_kv_events([Publisher(1).stored([10])], NOW_S)
    holders = tuple(profile.worker for profile in view.profiles())
    coverage = view.coverage(prompt([10]), tenant_domain(DOMAIN_ID, "tenant"), holders, NOW_S)
    assert coverage.prefix_tokens.tolist() == [BLOCK]


def test_an_unknown_holder_cannot_be_asked_about() -> None:
    view = new_view(1)
    with pytest.raises(KeyError):
        view.coverage(prompt([10]), DOMAIN_ID, (WorkerWithDpRank(WorkerId(9)),), NOW_S)


def test_the_columns_of_a_coverage_are_those_asked_for() -> None:
    view = new_view(3)
    view.apply_kv_events([Publisher(2).stored([10])], NOW_S)
    holders = (WorkerWithDpRank(WorkerId(3)), WorkerWithDpRank(WorkerId(2)))
    coverage = view.coverage(prompt([10]), DOMAIN_ID, holders, NOW_S)
    assert coverage.holders == holders
    assert coverage.prefix_tokens.tolist() == [0, BLOCK]


def test_more_than_64_schedulers_hold_like_few() -> None:
    view = new_view(130)
    for worker_id in (1, 64, 65, 130):
        view.apply_kv_events([Publisher(worker_id).stored([10, 11])], NOW_S)
    holding = [at + 1 for at, blocks in enumerate(device_blocks(view, [10, 11])) if blocks == 2]
    assert holding == [1, 64, 65, 130]


def test_a_prompt_without_blocks_or_segments_covers_nothing() -> None:
    coverage = cover(new_view(2), prompt())
    assert coverage.prefix_tokens.tolist() == [0, 0]
    assert coverage.segment_states.shape == (0, 2)


def test_hashes_from_the_wire_may_be_zero_negative_or_repeated() -> None:
    view, events = new_view(1, store_capacity_tokens=0), Publisher()
    view.apply_kv_events([events.stored([0, -1, 2**64 - 2, 7, 7], blocks=[10, 11, 12, 13, 14])], NOW_S)
    assert device_blocks(view, [10, 11, 12, 13, 14]) == [5]
    view.apply_kv_events([events.removed([0, 0, 2**64 - 1, -2])], NOW_S)
    assert device_blocks(view, [10]) == [0]


def test_an_event_without_content_changes_nothing() -> None:
    view = new_view(1)
    event = WorkerKvEvent(
        worker_id=WorkerId(1), event=KvEvent(event_id=EventId(0), dp_rank=DpRank(0), data=KvEventData())
    )
    view.apply_kv_events([event], NOW_S)
    assert view.num_entries == 0


def test_the_longest_unused_entries_make_room() -> None:
    view, events = ClusterView(max_entries=16, max_holders=4, ttl_s=5.0), Publisher()
    view.add_worker(round_card(1))
    for name in range(16):
        view.apply_kv_events([events.stored([name])], NOW_S)
    # The oldest is used, so the one after it is the oldest now.
    assert device_blocks(view, [0]) == [1]
    view.apply_kv_events([events.stored([99])], NOW_S)
    assert view.num_entries == 16
    assert [device_blocks(view, [name]) for name in (0, 1, 2, 99)] == [[1], [0], [1], [1]]
    assert view.num_evicted == 1


def test_blocks_behind_one_that_made_room_do_not_ask_for_the_state() -> None:
    view, events = ClusterView(max_entries=4, max_holders=4, ttl_s=5.0), Publisher()
    view.add_worker(round_card(1))
    for name in range(5):
        view.apply_kv_events([events.stored([name])], NOW_S)
    view.apply_kv_events([events.stored([100], parent=0)], NOW_S)
    assert not view.needs_state()


def test_more_blocks_than_fit_are_indexed_from_the_front() -> None:
    view, events = ClusterView(max_entries=8, max_holders=4, ttl_s=5.0), Publisher()
    view.add_worker(round_card(1))
    view.apply_kv_events([events.stored(range(100))], NOW_S)
    # One event may fill half of the bound.
    assert device_blocks(view, range(100)) == [4]


def test_new_workers_use_the_places_of_those_that_left() -> None:
    view = new_view(2)
    view.apply_kv_events([Publisher(1).stored([10])], NOW_S)
    view.remove_worker(WorkerId(1))
    assert view.num_entries == 0
    view.add_worker(round_card(3))
    assert device_blocks(view, [10]) == [0, 0]
