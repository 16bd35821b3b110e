"""Prompts without peers: steps, both tiers, local reuse."""

import pytest
from support.engine_world import BLOCK, DOMAIN, LOAD_COST, TOKEN_S, EngineWorld, join, passage, planned, span, unplanned

from nebula_protocol.events import HostBlocksStored, PicEvent, SegmentRemoved, SegmentStored
from nebula_protocol.fusion import legolink
from nebula_protocol.hashing import hash_blocks
from nebula_protocol.ids import Origin, RemovalReason, RequestId
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason
from nebula_protocol.tokens import TokenArray
from pic_worker.core.effects import KvRemoved, KvStored
from pic_worker.core.engine_request import exact_request
from pic_worker.core.errors import DuplicateRequestError, NoStepError, PromptRefusedError

LEAD, PASSAGE, QUESTION = passage(1, 8), passage(2, 20), passage(3, 5)


def prompt_with(lead: TokenArray) -> TokenArray:
    """The passage behind `lead`, which is 8 tokens long, then a question."""
    return join(lead, PASSAGE, QUESTION)


def test_a_new_prompt_is_computed_in_full() -> None:
    world = EngineWorld()
    receipt = world.serve(unplanned("a", prompt_with(LEAD), [(8, 28)]))
    assert (receipt.prompt_tokens, receipt.computed_tokens) == (33, 33)
    assert receipt.work.computed_tokens == 33
    assert receipt.work.attention_pairs == pytest.approx(33 * 33 / 2)
    assert receipt.timing.compute_s == pytest.approx(33 * TOKEN_S)


def test_a_repeated_prompt_computes_only_the_block_of_its_last_token() -> None:
    world = EngineWorld()
    tokens = passage(1, 4 * BLOCK)
    world.serve(unplanned("a", tokens))
    receipt = world.serve(unplanned("b", tokens))
    assert (receipt.prefix_hit_tokens, receipt.computed_tokens) == (3 * BLOCK, BLOCK)


def test_a_prompt_hits_the_prefix_that_another_one_computes_in_the_same_step() -> None:
    world = EngineWorld()
    tokens = passage(1, 4 * BLOCK)
    world.submit(unplanned("a", tokens))
    world.submit(unplanned("b", tokens))
    step = world.step()
    assert step is not None
    # All of the first, and of the second the block of its last token.
    assert [share.num_tokens for share in step.shares] == [4 * BLOCK, BLOCK]
    assert world.receipts["b"].prefix_hit_tokens == 3 * BLOCK


def test_blocks_are_announced_when_the_step_that_computes_them_ends() -> None:
    world = EngineWorld()
    world.submit(unplanned("a", passage(1, 4 * BLOCK)))
    step = world.begin_step()
    assert step is not None
    assert world.events == []
    world.end_step(step)
    assert [type(event) for event in world.events] == [KvStored]


def test_an_engine_may_announce_blocks_when_their_step_begins() -> None:
    world = EngineWorld(announces_early=True)
    world.submit(unplanned("a", passage(1, 4 * BLOCK)))
    world.begin_step()
    assert [type(event) for event in world.events] == [KvStored]


def test_a_passage_behind_another_lead_is_loaded_and_its_first_tokens_are_computed_again() -> None:
    world = EngineWorld()
    world.serve(unplanned("a", prompt_with(LEAD), [(8, 28)]))
    receipt = world.serve(unplanned("b", prompt_with(passage(9, 8)), [(8, 28)]))
    assert (receipt.segment_hit_tokens, receipt.local_hit_tokens, receipt.recomputed_tokens) == (20, 20, 2)
    assert receipt.computed_tokens == 33 - 20
    # 13 new and 2 recomputed tokens are computed, the other 18 loaded.
    assert receipt.work.computed_tokens == 15
    assert world.steps[-1].load_s == pytest.approx(18 * LOAD_COST.segment_s_per_token)
    assert receipt.timing.total_s == pytest.approx(15 * TOKEN_S + 18 * LOAD_COST.segment_s_per_token)
    assert receipt.segments[0].origin is Origin.IN_CONTEXT


def test_what_stands_between_loaded_tokens_attends_to_them() -> None:
    world = EngineWorld()
    world.serve(unplanned("a", prompt_with(LEAD), [(8, 28)]))
    receipt = world.serve(unplanned("b", prompt_with(passage(9, 8)), [(8, 28)]))
    # Positions 0 to 10 (the lead and two recomputed tokens), then 28 to 33.
    assert receipt.work.attention_pairs == pytest.approx(10 * 5 + 5 * (28 + 2.5))


def test_an_own_cut_is_reported_as_having_planned_what_was_done() -> None:
    world = EngineWorld()
    first = world.serve(unplanned("a", prompt_with(LEAD), [(8, 28)])).segments[0]
    second = world.serve(unplanned("b", prompt_with(passage(9, 8)), [(8, 28)])).segments[0]
    assert (first.planned, first.done, first.stored) == (Source.COMPUTE, Source.COMPUTE, True)
    assert (second.planned, second.done, second.stored) == (Source.LOCAL, Source.LOCAL, True)


def test_a_segment_at_offset_0_is_not_kept_twice() -> None:
    world = EngineWorld()
    outcome = world.serve(unplanned("a", join(PASSAGE, QUESTION), [(0, 20)])).segments[0]
    assert not outcome.stored
    assert world.engine.stats().store_segment_tokens == 0


def test_a_prefix_hit_is_preferred_to_a_segment_hit_on_the_same_tokens() -> None:
    world = EngineWorld()
    world.serve(unplanned("a", prompt_with(LEAD), [(8, 28)]))
    receipt = world.serve(unplanned("b", join(LEAD, PASSAGE, passage(4, 6)), [(8, 28)]))
    assert (receipt.prefix_hit_tokens, receipt.segment_hit_tokens) == (28, 0)
    assert (receipt.segments[0].prefix_tokens, receipt.segments[0].done) == (20, Source.LOCAL)


def test_the_part_of_a_segment_behind_the_prefix_is_a_segment_hit() -> None:
    world = EngineWorld()
    world.serve(unplanned("a", prompt_with(LEAD), [(8, 28)]))
    # The same lead, and the passage after its first block: 8 + 4 tokens are prefix. The passage with the block is
    # another segment, so it is made known first.
    world.serve(unplanned("b", join(passage(9, 4), LEAD, PASSAGE[:18], QUESTION), [(12, 30)]))
    receipt = world.serve(unplanned("c", join(LEAD, PASSAGE[:18], QUESTION), [(8, 26)]))
    # 24 tokens are in whole equal blocks, 2 are left of the segment: no more than what is computed again.
    assert (receipt.prefix_hit_tokens, receipt.segment_hit_tokens) == (24, 0)
    receipt = world.serve(unplanned("d", join(LEAD[:4], PASSAGE[:18], QUESTION), [(4, 22)]))
    assert (receipt.prefix_hit_tokens, receipt.segment_hit_tokens) == (4, 18)


def test_the_last_token_is_computed_even_if_a_segment_holds_it() -> None:
    world = EngineWorld()
    world.serve(unplanned("a", prompt_with(LEAD), [(8, 28)]))
    receipt = world.serve(unplanned("b", join(passage(9, 8), PASSAGE), [(8, 28)]))
    assert (receipt.segment_hit_tokens, receipt.computed_tokens) == (19, 9)


def test_a_segment_no_longer_than_what_is_computed_again_is_computed() -> None:
    world = EngineWorld(fusion=legolink(20))
    world.serve(unplanned("a", prompt_with(LEAD), [(8, 28)]))
    tokens = prompt_with(passage(9, 8))
    receipt = world.serve(planned("b", tokens, [span(tokens, 8, 28, Source.LOCAL)]))
    assert (receipt.segment_hit_tokens, receipt.computed_tokens) == (0, 33)
    assert receipt.segments[0].fallback is FallbackReason.VETO
    assert receipt.invalid_hit_tokens == 0


def test_a_request_without_pic_reads_no_block_that_pic_may_have_touched_and_keeps_no_segment() -> None:
    world = EngineWorld()
    tokens = prompt_with(LEAD)
    world.serve(unplanned("a", tokens, [(8, 28)]))
    receipt = world.serve(planned("b", tokens, [span(tokens, 8, 28, Source.LOCAL)], pic=False))
    assert (receipt.computed_tokens, receipt.segments) == (33, ())
    again = world.serve(planned("c", tokens, pic=False))
    assert again.prefix_hit_tokens == 32


def test_an_exact_request_is_of_its_own_lineage() -> None:
    world = EngineWorld()
    request = exact_request(
        RequestId("a"), LEAD, hash_blocks(LEAD, BLOCK), lineage="exact", domain_id=DOMAIN, hold_prompt=False
    )
    world.serve(request)
    stored = world.events[0]
    assert isinstance(stored, KvStored)
    assert (request.segments, stored.lineage) == ((), "exact")


def test_a_worker_without_pic_keeps_no_segments() -> None:
    world = EngineWorld(pic=False)
    world.serve(unplanned("a", prompt_with(LEAD), [(8, 28)]))
    receipt = world.serve(unplanned("b", prompt_with(passage(9, 8)), [(8, 28)]))
    assert (receipt.computed_tokens, world.engine.stats().store_segment_tokens) == (33, 0)


def test_blocks_that_leave_the_device_tier_are_reloaded_from_the_store() -> None:
    world = EngineWorld(device_capacity_tokens=40)
    world.serve(unplanned("a", passage(1, 32)))
    world.serve(unplanned("b", passage(2, 40)))
    receipt = world.serve(unplanned("c", join(passage(1, 32), passage(3, 4))))
    assert (receipt.prefix_hit_tokens, receipt.computed_tokens) == (32, 4)
    assert world.steps[-1].load_s == pytest.approx(32 * LOAD_COST.block_s_per_token)


def test_blocks_that_are_being_reloaded_stay_in_the_store_until_then() -> None:
    world = EngineWorld(device_capacity_tokens=40, store_capacity_tokens=40)
    world.serve(unplanned("a", passage(1, 32)))
    world.serve(unplanned("b", passage(2, 40)))
    world.submit(unplanned("c", join(passage(1, 32), passage(3, 4))))
    step = world.begin_step()
    assert step is not None
    assert world.engine.stats().store_pinned_tokens == 32
    world.end_step(step)
    assert world.engine.stats().store_pinned_tokens == 0


def test_a_block_is_announced_in_the_store_before_it_is_taken_back_from_the_device_tier() -> None:
    world = EngineWorld(device_capacity_tokens=40)
    world.serve(unplanned("a", passage(1, 40)))
    world.events.clear()
    world.serve(unplanned("b", passage(2, 40)))
    stored = next(event for event in world.events if isinstance(event, PicEvent))
    removed = next(event for event in world.events if isinstance(event, KvRemoved))
    assert isinstance(stored.data, HostBlocksStored)
    assert stored.data.block_hashes == removed.block_hashes
    assert world.events.index(stored) < world.events.index(removed)


def test_events_come_only_when_the_step_is_done() -> None:
    world = EngineWorld()
    world.submit(unplanned("a", prompt_with(LEAD), [(8, 28)]))
    step = world.begin_step()
    assert step is not None
    assert world.events == []
    world.end_step(step)
    assert isinstance(world.events[0], KvStored)
    assert isinstance(world.events[1], PicEvent)
    assert isinstance(world.events[1].data, SegmentStored)


def test_a_long_prompt_runs_in_chunks_and_its_segments_are_kept_as_they_complete() -> None:
    world = EngineWorld(max_step_tokens=10)
    world.submit(unplanned("a", prompt_with(LEAD), [(8, 28)]))
    sizes = []
    stored_after = None
    while (step := world.step()) is not None:
        sizes.append(step.num_tokens)
        if stored_after is None and world.engine.stats().store_segment_tokens:
            stored_after = len(sizes)
    assert (sizes, stored_after) == ([10, 10, 10, 3], 3)
    assert world.receipts["a"].work.num_steps == 4
    # After 10, 20, 30 and 33 tokens 2, 5, 7 and 8 whole blocks of 4 are there.
    assert [len(event.block_hashes) for event in world.events if isinstance(event, KvStored)] == [2, 3, 2, 1]


def test_a_prompt_that_waits_to_be_pulled_holds_its_blocks() -> None:
    world = EngineWorld(device_capacity_tokens=40)
    world.serve(unplanned("a", passage(1, 30), hold_prompt=True))
    assert world.engine.held_prompt_tokens(RequestId("a")) == 30
    world.submit(unplanned("b", passage(2, 30)))
    assert world.begin_step() is None
    assert world.engine.prompt_pulled(RequestId("a")) == 30
    assert world.engine.prompt_pulled(RequestId("a")) == 0
    assert world.step() is not None


def test_a_prompt_that_nobody_pulls_is_freed_in_time() -> None:
    world = EngineWorld(device_capacity_tokens=40, prompt_hold_s=5.0)
    world.serve(unplanned("a", passage(1, 30), hold_prompt=True))
    assert world.engine.next_deadline_s() == pytest.approx(world.now_s + 5.0)
    world.now_s += 5.0
    world.take(world.engine.advance(world.now_s))
    assert world.engine.held_prompt_tokens(RequestId("a")) == 0
    assert world.engine.next_deadline_s() is None
    assert world.engine.stats().device_held_blocks == 0


def test_the_hold_of_an_id_that_is_used_again_lasts_from_its_second_prefill() -> None:
    world = EngineWorld(prompt_hold_s=5.0)
    world.serve(unplanned("a", passage(1, 8), hold_prompt=True))
    world.now_s += 3.0
    world.serve(unplanned("a", passage(1, 8), hold_prompt=True))
    world.now_s += 3.0
    world.take(world.engine.advance(world.now_s))
    assert world.engine.held_prompt_tokens(RequestId("a")) == 8


def test_a_prompt_without_room_stops_those_behind_it() -> None:
    world = EngineWorld(device_capacity_tokens=40)
    world.serve(unplanned("held", passage(1, 20), hold_prompt=True))
    world.submit(unplanned("large", passage(2, 30)))
    world.submit(unplanned("small", passage(3, 4)))
    assert world.begin_step() is None
    world.engine.prompt_pulled(RequestId("held"))
    world.run()
    assert list(world.receipts) == ["held", "large", "small"]


def test_no_more_prompts_run_than_allowed() -> None:
    world = EngineWorld(max_running=2)
    for name in "abc":
        world.submit(unplanned(name, passage(ord(name), 8)))
    step = world.begin_step()
    assert step is not None
    assert [share.request_id for share in step.shares] == ["a", "b"]


def test_impossible_prompts_are_refused() -> None:
    world = EngineWorld(device_capacity_tokens=40)
    with pytest.raises(PromptRefusedError, match="a prompt of 41 tokens does not fit a device tier of 40 tokens"):
        world.submit(unplanned("a", passage(1, 41)))
    with pytest.raises(PromptRefusedError):
        world.submit(unplanned("a", passage(1, 0)))
    world.serve(unplanned("a", passage(1, 40)))


def test_a_live_id_cannot_be_used_again_but_one_that_waits_to_be_pulled_can() -> None:
    world = EngineWorld()
    world.submit(unplanned("a", passage(1, 8), hold_prompt=True))
    with pytest.raises(DuplicateRequestError):
        world.submit(unplanned("a", passage(1, 8)))
    world.run()
    world.serve(unplanned("a", passage(1, 8), hold_prompt=True))
    assert world.engine.stats().num_held == 1


def test_one_step_at_a_time() -> None:
    world = EngineWorld()
    with pytest.raises(NoStepError):
        world.engine.finish_step(0.0)
    world.submit(unplanned("a", passage(1, 8)))
    assert world.begin_step() is not None
    world.submit(unplanned("b", passage(2, 8)))
    assert world.begin_step() is None


def test_clearing_forgets_all_that_is_not_in_use() -> None:
    world = EngineWorld()
    world.serve(unplanned("a", prompt_with(LEAD), [(8, 28)]))
    world.serve(unplanned("held", passage(5, 8), hold_prompt=True))
    world.take(world.engine.clear())
    state = world.engine.state_snapshot()
    assert (len(state.blocks), state.segments) == (2, ())
    assert world.serve(unplanned("b", prompt_with(LEAD), [(8, 28)])).computed_tokens == 33


def test_clearing_names_what_left_the_store_when_something_in_use_stays_there() -> None:
    world = EngineWorld()
    world.serve(unplanned("a", prompt_with(LEAD), [(8, 28)]))
    world.serve(unplanned("b", join(passage(7, 4), passage(6, 12)), [(4, 16)]))
    tokens = prompt_with(passage(9, 8))
    world.submit(planned("c", tokens, [span(tokens, 8, 28, Source.LOCAL)]))
    world.events.clear()
    world.take(world.engine.clear())
    removed = [event.data for event in world.events if isinstance(event, PicEvent)]
    assert [(type(data), data.reason) for data in removed if isinstance(data, SegmentRemoved)] == [
        (SegmentRemoved, RemovalReason.CLEARED)
    ]
    world.run()
    assert world.receipts["c"].local_hit_tokens == 20
