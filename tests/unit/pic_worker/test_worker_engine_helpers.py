"""Segments computed alone for other workers' prompts."""

import pytest
from support.engine_world import (
    DOMAIN,
    OWN,
    PEER,
    TOKEN_S,
    EngineWorld,
    helper,
    join,
    passage,
    planned,
    span,
    unplanned,
)

from nebula_protocol.hashing import hash_segment
from nebula_protocol.ids import Origin, RequestId
from nebula_protocol.plan import HelperTask, Source
from pic_worker.core.engine_request import helper_request
from pic_worker.core.errors import PromptRefusedError

FIRST, SECOND = passage(1, 20), passage(2, 12)


def test_a_helper_computes_each_segment_from_position_0_and_keeps_it_as_computed_alone() -> None:
    world = EngineWorld()
    receipt = world.serve(helper("h", FIRST, SECOND))
    assert (receipt.prompt_tokens, receipt.computed_tokens) == (32, 32)
    assert receipt.work.attention_pairs == pytest.approx(20 * 10 + 12 * 6)
    assert [(entry.num_tokens, entry.origin) for entry in world.engine.state_snapshot().segments] == [
        (20, Origin.ALONE),
        (12, Origin.ALONE),
    ]
    assert world.engine.stats().device_held_blocks == 0


def test_a_helper_leaves_no_prefix_blocks() -> None:
    world = EngineWorld()
    world.serve(helper("h", FIRST))
    assert world.engine.state_snapshot().blocks == ()


def test_each_segment_is_kept_as_soon_as_it_is_done() -> None:
    world = EngineWorld(max_step_tokens=25)
    world.submit(helper("h", FIRST, SECOND))
    world.step()
    assert [entry.num_tokens for entry in world.engine.state_snapshot().segments] == [20]
    assert "h" not in world.receipts


def test_a_segment_that_is_here_is_not_computed_again() -> None:
    world = EngineWorld()
    world.serve(helper("h", FIRST))
    receipt = world.serve(helper("i", FIRST, SECOND))
    assert (receipt.local_hit_tokens, receipt.computed_tokens) == (20, 12)
    assert [outcome.done for outcome in receipt.segments] == [Source.LOCAL, Source.COMPUTE]


def test_a_helper_with_nothing_left_to_do_ends_without_a_step() -> None:
    world = EngineWorld()
    world.serve(helper("h", FIRST))
    world.submit(helper("i", FIRST))
    assert world.begin_step() is None
    assert world.receipts["i"].timing.total_s == 0.0


def test_a_copy_in_context_is_not_replaced_by_one_computed_alone_in_the_same_step() -> None:
    world = EngineWorld()
    world.submit(helper("h", FIRST))
    world.submit(unplanned("a", join(passage(9, 8), FIRST), [(8, 28)]))
    world.run()
    assert [step.num_tokens for step in world.steps] == [28 + 20]
    assert [entry.origin for entry in world.engine.state_snapshot().segments] == [Origin.IN_CONTEXT]


def test_a_segment_asked_for_by_two_helpers_is_computed_once() -> None:
    world = EngineWorld()
    world.submit(helper("h", FIRST))
    world.submit(helper("i", FIRST))
    world.run()
    assert [step.num_tokens for step in world.steps] == [20]
    assert set(world.receipts) == {"h", "i"}


def test_own_prompts_come_first_and_helpers_get_what_is_left() -> None:
    world = EngineWorld(max_step_tokens=30)
    world.submit(helper("h", FIRST))
    world.submit(unplanned("a", passage(3, 24)))
    step = world.begin_step()
    assert step is not None
    assert [(share.request_id, share.num_tokens) for share in step.shares] == [("a", 24), ("h", 6)]


def test_a_helper_that_got_nothing_for_long_is_given_a_share() -> None:
    world = EngineWorld(max_step_tokens=40, helper_patience_s=0.1, helper_share_ratio=0.25, device_capacity_tokens=800)
    world.submit(helper("h", FIRST))
    world.submit(unplanned("a", passage(3, 400)))
    helped_at = []
    while len(world.steps) < 8 and (step := world.step()) is not None:
        helped_at += [(len(world.steps), share.num_tokens) for share in step.shares if share.is_helper]
    # A full step takes 0.04 s, so after 3 steps 0.12 s have passed; the share of 10 tokens comes again 0.1 s later.
    assert helped_at == [(4, 10), (7, 10)]
    assert world.receipts["h"].timing.total_s == pytest.approx(7 * 40 * TOKEN_S)


def test_a_prompt_can_join_what_a_helper_computes() -> None:
    world = EngineWorld()
    world.submit(helper("h", FIRST))
    tokens = join(passage(9, 8), FIRST, passage(8, 4))
    world.submit(planned("a", tokens, [span(tokens, 8, 28, Source.JOIN, OWN)], wait_budget_s=1.0))
    world.run()
    assert world.receipts["a"].segments[0].done is Source.JOIN
    assert world.receipts["a"].segments[0].origin is Origin.ALONE


def test_a_helper_waits_for_an_earlier_prompt_that_will_keep_the_segment() -> None:
    world = EngineWorld()
    tokens = join(passage(9, 8), FIRST)
    world.submit(planned("a", tokens, [span(tokens, 8, 28, Source.FETCH, PEER)], wait_budget_s=1.0))
    world.submit(helper("h", FIRST))
    assert world.begin_step() is None
    world.now_s = 1.0
    world.run()
    assert (world.receipts["a"].computed_tokens, world.receipts["h"].local_hit_tokens) == (28, 20)


def test_segments_whose_tokens_are_cut_off_or_do_not_fit_their_hash_are_left_out() -> None:
    task = HelperTask(
        for_request=RequestId("theirs"),
        domain_id=DOMAIN,
        segments=((hash_segment(FIRST), 20), (hash_segment(FIRST), 12), (hash_segment(SECOND), 12)),
    )
    request = helper_request(RequestId("h"), task, join(FIRST, SECOND))
    assert request.segments == ((hash_segment(FIRST), 20),)
    assert request.tokens.tolist() == FIRST.tolist()


def test_helper_work_that_never_fits_is_refused() -> None:
    world = EngineWorld(device_capacity_tokens=16)
    with pytest.raises(PromptRefusedError):
        world.submit(helper("h", FIRST))
    task = HelperTask(for_request=RequestId("theirs"), domain_id=DOMAIN, segments=())
    with pytest.raises(PromptRefusedError):
        world.submit(helper_request(RequestId("h"), task, passage(1, 4)))


def test_a_helper_waits_for_room_and_does_not_stop_those_behind_it() -> None:
    world = EngineWorld(device_capacity_tokens=40)
    world.serve(unplanned("held", passage(4, 20), hold_prompt=True))
    world.submit(helper("large", passage(5, 24)))
    world.submit(helper("small", SECOND))
    world.run()
    assert set(world.receipts) == {"held", "small"}
    world.engine.prompt_pulled(RequestId("held"))
    world.run()
    assert "large" in world.receipts


def test_an_aborted_helper_leaves_nothing() -> None:
    world = EngineWorld()
    world.submit(helper("h", FIRST))
    step = world.begin_step()
    assert step is not None
    world.take(world.engine.abort(RequestId("h"), world.now_s))
    world.end_step(step)
    stats = world.engine.stats()
    assert (stats.num_helpers, stats.device_held_blocks, stats.store_segment_tokens) == (0, 0, 0)
    assert world.receipts == {}
