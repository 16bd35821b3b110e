"""Prompts with a plan: segments from peers, from earlier requests here, and the ways in which they fail."""

import math

import pytest
from support.engine_world import (
    BLOCK,
    DOMAIN,
    LOAD_COST,
    OTHER_PEER,
    OWN,
    PEER,
    TOKEN_S,
    EngineWorld,
    join,
    passage,
    planned,
    span,
    unplanned,
)

from nebula_protocol.cost import LinkFit
from nebula_protocol.hashing import hash_segment
from nebula_protocol.ids import DomainId, Origin, RequestId
from nebula_protocol.messages import FetchedSegment, WantedSegment
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason, SegmentOutcome
from nebula_protocol.tokens import TokenArray, token_bytes

LEAD, FIRST, SECOND, QUESTION = passage(1, 8), passage(2, 20), passage(3, 12), passage(4, 5)
TOKENS = join(LEAD, FIRST, SECOND, QUESTION)
"""The first passage stands at 8 to 28, the second at 28 to 40, the question ends at 45."""


def arrived(tokens: TokenArray, origin: Origin = Origin.IN_CONTEXT) -> FetchedSegment:
    return FetchedSegment(
        segment_hash=hash_segment(tokens), token_bytes=token_bytes(tokens), origin=origin, kv_bytes=10 * len(tokens)
    )


def finish_fetch(
    world: EngineWorld, request_id: str, tokens: TokenArray, outcome: FetchedSegment | FallbackReason | None = None
) -> None:
    world.take(
        world.engine.fetch_finished(
            RequestId(request_id), hash_segment(tokens), outcome or arrived(tokens), world.now_s
        )
    )


def outcomes(world: EngineWorld, request_id: str) -> tuple[SegmentOutcome, ...]:
    return world.receipts[request_id].segments


def test_a_prompt_that_waits_for_a_fetch_holds_neither_engine_nor_blocks() -> None:
    world = EngineWorld()
    world.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)], wait_budget_s=1.0))
    assert world.begin_step() is None
    assert world.engine.stats().device_held_blocks == 0
    world.serve(unplanned("b", passage(9, 4)))
    assert "a" not in world.receipts
    finish_fetch(world, "a", FIRST)
    world.run()
    assert world.receipts["a"].fetched_hit_tokens == 20


def test_one_command_per_peer_names_the_segments_and_whether_to_join() -> None:
    world = EngineWorld()
    spans = [span(TOKENS, 8, 28, Source.FETCH, PEER), span(TOKENS, 28, 40, Source.COMPUTE_AT, OTHER_PEER)]
    world.submit(planned("a", TOKENS, spans, wait_budget_s=1.5))
    first, second = world.fetches
    assert (first.from_worker, first.domain_id, first.wait_s) == (PEER, DOMAIN, 1.5)
    assert first.segments == (WantedSegment(segment_hash=hash_segment(FIRST), num_tokens=20, join=False),)
    assert second.segments == (WantedSegment(segment_hash=hash_segment(SECOND), num_tokens=12, join=True),)


def test_a_passage_that_stands_twice_in_a_prompt_is_fetched_once_and_loaded_twice() -> None:
    world = EngineWorld()
    tokens = join(LEAD, FIRST, FIRST, QUESTION)
    spans = [span(tokens, 8, 28, Source.FETCH, PEER), span(tokens, 28, 48, Source.FETCH, PEER)]
    world.submit(planned("a", tokens, spans, wait_budget_s=1.0))
    assert [len(command.segments) for command in world.fetches] == [1]
    finish_fetch(world, "a", FIRST)
    world.run()
    assert world.receipts["a"].fetched_hit_tokens == 40
    assert world.engine.stats().store_pinned_tokens == 0


@pytest.mark.parametrize(("source", "done"), [(s, s) for s in (Source.FETCH, Source.JOIN, Source.COMPUTE_AT)])
def test_segments_from_peers_say_how_they_came(source: Source, done: Source) -> None:
    world = EngineWorld()
    world.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, source, PEER)], wait_budget_s=1.0))
    finish_fetch(world, "a", FIRST, arrived(FIRST, Origin.ALONE))
    world.run()
    outcome = outcomes(world, "a")[0]
    assert (outcome.planned, outcome.done, outcome.origin) == (source, done, Origin.ALONE)
    assert (outcome.recomputed_tokens, outcome.fallback, outcome.stored) == (2, None, True)


def test_a_copy_that_is_not_kept_is_used_once() -> None:
    world = EngineWorld()
    world.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER, keep=False)], wait_budget_s=1.0))
    finish_fetch(world, "a", FIRST)
    world.run()
    assert world.receipts["a"].fetched_hit_tokens == 20
    assert not outcomes(world, "a")[0].stored


def test_a_copy_for_which_the_store_has_no_room_is_used_once() -> None:
    world = EngineWorld(store_capacity_tokens=8)
    world.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)], wait_budget_s=1.0))
    finish_fetch(world, "a", FIRST)
    world.run()
    assert (world.receipts["a"].fetched_hit_tokens, outcomes(world, "a")[0].stored) == (20, False)


def test_what_is_here_is_not_fetched() -> None:
    world = EngineWorld()
    world.serve(unplanned("a", join(passage(8, 4), FIRST), [(4, 24)]))
    world.submit(planned("b", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)], wait_budget_s=1.0))
    assert world.fetches == []
    world.run()
    outcome = outcomes(world, "b")[0]
    assert (outcome.planned, outcome.done, world.receipts["b"].local_hit_tokens) == (Source.FETCH, Source.LOCAL, 20)


def test_what_the_prefix_covers_is_not_fetched() -> None:
    world = EngineWorld()
    world.serve(unplanned("a", join(LEAD, FIRST)))
    world.submit(planned("b", TOKENS, [span(TOKENS, 8, 24, Source.FETCH, PEER)], wait_budget_s=1.0))
    assert world.fetches == []


@pytest.mark.parametrize(
    ("outcome", "fallback", "invalid_tokens"),
    [
        (FetchedSegment(segment_hash=hash_segment(FIRST), token_bytes=None), FallbackReason.NOT_THERE, 20),
        (FallbackReason.SOURCE_GONE, FallbackReason.SOURCE_GONE, 20),
        (arrived(passage(7, 20)), FallbackReason.TOKENS_DIFFER, 20),
        (FallbackReason.LATE, FallbackReason.LATE, 0),
    ],
)
def test_a_fetch_that_fails_means_computing(
    outcome: FetchedSegment | FallbackReason, fallback: FallbackReason, invalid_tokens: int
) -> None:
    world = EngineWorld()
    world.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)], wait_budget_s=1.0))
    finish_fetch(world, "a", FIRST, outcome)
    world.run()
    receipt = world.receipts["a"]
    assert (receipt.computed_tokens, receipt.invalid_hit_tokens) == (45, invalid_tokens)
    assert (receipt.segments[0].done, receipt.segments[0].fallback) == (Source.COMPUTE, fallback)
    assert receipt.segments[0].stored


def test_the_wait_ends_at_the_budget_and_the_segment_is_computed() -> None:
    world = EngineWorld()
    world.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)], wait_budget_s=0.5))
    assert world.engine.next_deadline_s() == pytest.approx(0.5)
    world.now_s = 0.5
    world.run()
    receipt = world.receipts["a"]
    assert receipt.segments[0].fallback is FallbackReason.LATE
    assert (receipt.timing.wait_s, receipt.timing.queue_s) == pytest.approx((0.5, 0.0))
    assert world.engine.next_deadline_s() is None


def test_a_fetch_may_come_after_the_budget_while_the_prompt_queues_anyway() -> None:
    world = EngineWorld()
    world.submit(unplanned("before", passage(9, 100)))
    step = world.begin_step()
    assert step is not None
    world.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)], wait_budget_s=0.05))
    world.end_step(step)
    # 100 tokens took 0.1 s: the budget is over, and the prompt has not had its turn.
    finish_fetch(world, "a", FIRST)
    world.run()
    receipt = world.receipts["a"]
    assert receipt.fetched_hit_tokens == 20
    assert (receipt.timing.wait_s, receipt.timing.queue_s) == pytest.approx((0.05, 0.05))


def test_a_fetch_that_comes_after_the_turn_is_still_stored() -> None:
    world = EngineWorld()
    world.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)]))
    step = world.begin_step()
    assert step is not None
    finish_fetch(world, "a", FIRST, arrived(FIRST, Origin.ALONE))
    assert world.engine.stats().store_segment_tokens == 20
    world.end_step(step)
    # The copy in context takes its place.
    assert world.engine.state_snapshot().segments[0].origin is Origin.IN_CONTEXT
    assert world.engine.stats().store_pinned_tokens == 0


def test_a_fetch_for_a_request_that_is_gone_is_ignored() -> None:
    world = EngineWorld()
    world.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)], wait_budget_s=1.0))
    world.take(world.engine.abort(RequestId("a"), world.now_s))
    finish_fetch(world, "a", FIRST)
    assert world.engine.stats().store_segment_tokens == 0


def test_a_planned_local_hit_that_is_not_here_is_an_invalid_hit() -> None:
    world = EngineWorld()
    receipt = world.serve(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.LOCAL)]))
    assert (receipt.invalid_hit_tokens, receipt.segments[0].fallback) == (20, FallbackReason.NOT_THERE)


def test_an_expected_prefix_that_is_not_here_is_an_invalid_hit_but_for_what_segments_make_up() -> None:
    world = EngineWorld()
    world.serve(unplanned("a", join(passage(8, 4), FIRST), [(4, 24)]))
    receipt = world.serve(planned("b", TOKENS, [span(TOKENS, 8, 28, Source.LOCAL)], expected_prefix_tokens=32))
    # Of 32 expected tokens, 20 came from the segment at 8 to 28.
    assert receipt.invalid_hit_tokens == 12


def test_a_local_hit_stays_until_the_turn_however_full_the_store_gets() -> None:
    world = EngineWorld(store_capacity_tokens=24, prefix_ratio=0.0)
    world.serve(unplanned("a", join(passage(8, 4), FIRST), [(4, 24)]))
    world.submit(unplanned("b", join(passage(9, 4), passage(10, 24)), [(4, 28)]))
    world.submit(planned("c", TOKENS, [span(TOKENS, 8, 28, Source.LOCAL)]))
    world.run()
    assert world.receipts["c"].local_hit_tokens == 20
    assert not outcomes(world, "b")[0].stored


def test_what_was_to_be_computed_is_loaded_if_the_store_has_it_by_then() -> None:
    world = EngineWorld()
    world.serve(unplanned("a", join(passage(8, 4), FIRST), [(4, 24)]))
    world.serve(planned("b", TOKENS, [span(TOKENS, 8, 28, Source.COMPUTE)]))
    outcome = outcomes(world, "b")[0]
    assert (outcome.planned, outcome.done, outcome.fallback) == (Source.COMPUTE, Source.LOCAL, None)


@pytest.mark.parametrize("source", [Source.JOIN, Source.LOCAL])
def test_a_prompt_waits_for_an_earlier_one_here_that_computes_the_segment(source: Source) -> None:
    world = EngineWorld()
    world.submit(planned("a", join(passage(8, 4), FIRST, passage(9, 4)), [span(join(passage(8, 4), FIRST), 4, 24)]))
    owner = OWN if source is Source.JOIN else None
    world.submit(planned("b", TOKENS, [span(TOKENS, 8, 28, source, owner)], wait_budget_s=1.0))
    step = world.begin_step()
    assert step is not None
    assert [share.request_id for share in step.shares] == ["a"]
    world.end_step(step)
    world.run()
    receipt = world.receipts["b"]
    assert (receipt.local_hit_tokens, receipt.segments[0].done) == (20, source)
    assert receipt.timing.wait_s == pytest.approx(28 * TOKEN_S)


def test_without_a_plan_nobody_waits_for_an_earlier_prompt() -> None:
    world = EngineWorld()
    world.submit(unplanned("a", join(passage(8, 4), FIRST), [(4, 24)]))
    world.submit(unplanned("b", TOKENS, [(8, 28)]))
    step = world.begin_step()
    assert step is not None
    assert len(step.shares) == 2


def test_a_prompt_that_waits_for_an_earlier_one_computes_when_that_is_aborted() -> None:
    world = EngineWorld()
    earlier = join(passage(8, 4), FIRST)
    world.submit(planned("a", earlier, [span(earlier, 4, 24, Source.FETCH, PEER)], wait_budget_s=9.0))
    world.submit(planned("b", TOKENS, [span(TOKENS, 8, 28, Source.JOIN, OWN)], wait_budget_s=9.0))
    assert world.begin_step() is None
    world.take(world.engine.abort(RequestId("a"), world.now_s))
    world.run()
    outcome = outcomes(world, "b")[0]
    assert (outcome.done, outcome.fallback, outcome.stored) == (Source.COMPUTE, FallbackReason.NOT_THERE, True)


def test_a_prompt_joins_what_is_being_fetched_here_for_an_earlier_one() -> None:
    world = EngineWorld()
    earlier = join(passage(8, 4), FIRST)
    world.submit(planned("a", earlier, [span(earlier, 4, 24, Source.FETCH, PEER)], wait_budget_s=9.0))
    world.submit(planned("b", TOKENS, [span(TOKENS, 8, 28, Source.JOIN, OWN)], wait_budget_s=9.0))
    assert len(world.fetches) == 1
    finish_fetch(world, "a", FIRST)
    world.run()
    assert outcomes(world, "b")[0].done is Source.JOIN
    assert world.receipts["b"].local_hit_tokens == 20


def test_of_several_prompts_that_waited_for_an_aborted_one_the_first_computes_for_the_others() -> None:
    world = EngineWorld()
    earlier = join(passage(8, 4), FIRST)
    world.submit(planned("a", earlier, [span(earlier, 4, 24, Source.FETCH, PEER)], wait_budget_s=9.0))
    for request_id in "bc":
        world.submit(planned(request_id, TOKENS, [span(TOKENS, 8, 28, Source.JOIN, OWN)], wait_budget_s=9.0))
    world.take(world.engine.abort(RequestId("a"), world.now_s))
    world.run()
    assert [outcomes(world, request_id)[0].done for request_id in "bc"] == [Source.COMPUTE, Source.LOCAL]
    assert world.receipts["c"].prefix_hit_tokens == 44


def test_a_segment_fetched_for_offset_0_is_used_and_not_kept_beside_the_prefix_that_it_becomes() -> None:
    world = EngineWorld()
    tokens = join(FIRST, QUESTION)
    world.submit(planned("a", tokens, [span(tokens, 0, 20, Source.FETCH, PEER)], wait_budget_s=1.0))
    finish_fetch(world, "a", FIRST)
    world.run()
    assert (world.receipts["a"].fetched_hit_tokens, world.engine.stats().store_segment_tokens) == (20, 0)


def test_wrong_tokens_that_come_after_the_turn_are_not_stored() -> None:
    world = EngineWorld()
    world.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)]))
    assert world.begin_step() is not None
    finish_fetch(world, "a", FIRST, arrived(passage(7, 20)))
    assert world.engine.stats().store_segment_tokens == 0


def test_a_prompt_never_waits_for_a_later_one() -> None:
    world = EngineWorld()
    earlier = join(passage(8, 4), FIRST)
    world.submit(planned("a", earlier, [span(earlier, 4, 24, Source.FETCH, PEER)], wait_budget_s=9.0))
    world.submit(planned("b", TOKENS, [span(TOKENS, 8, 28, Source.JOIN, OWN)], wait_budget_s=9.0))
    world.submit(unplanned("c", join(passage(9, 4), FIRST), [(4, 24)]))
    world.take(world.engine.abort(RequestId("a"), world.now_s))
    step = world.begin_step()
    assert step is not None
    assert [share.request_id for share in step.shares] == ["b", "c"]


def test_a_prompt_never_waits_for_itself() -> None:
    world = EngineWorld()
    tokens = join(LEAD, FIRST, FIRST, QUESTION)
    spans = [span(tokens, 8, 28, Source.LOCAL), span(tokens, 28, 48, Source.LOCAL)]
    receipt = world.serve(planned("a", tokens, spans, wait_budget_s=9.0))
    assert receipt.computed_tokens == 53
    assert receipt.timing.wait_s == 0.0


def test_two_prompts_that_would_join_each_other_do_not_wait_for_ever() -> None:
    world = EngineWorld()
    one, two = join(LEAD, FIRST, SECOND), join(passage(9, 8), SECOND, FIRST)
    world.submit(planned("a", one, [span(one, 8, 28), span(one, 28, 40, Source.JOIN, OWN)], wait_budget_s=math.inf))
    world.submit(planned("b", two, [span(two, 8, 20), span(two, 20, 40, Source.JOIN, OWN)], wait_budget_s=math.inf))
    world.run()
    assert set(world.receipts) == {"a", "b"}


def test_a_plan_for_another_domain_reuses_nothing_that_is_not_here() -> None:
    world = EngineWorld()
    spans = [span(TOKENS, 8, 28, Source.FETCH, PEER)]
    receipt = world.serve(planned("a", TOKENS, spans, domain_id=DomainId("other"), wait_budget_s=1.0))
    assert world.fetches == []
    assert (receipt.computed_tokens, receipt.segments[0].fallback) == (45, FallbackReason.DOMAIN_DIFFERS)


def test_an_idle_engine_does_not_make_a_fetch_that_is_far_slower_than_computing() -> None:
    # 200 bytes at 100 bytes a second are 2 s; 20 tokens are computed in 0.02 s.
    slow = EngineWorld(veto_ratio=2.0, peer_link=_link(bytes_per_s=100.0))
    slow.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)], wait_budget_s=9.0))
    assert slow.fetches == []
    slow.run()
    assert outcomes(slow, "a")[0].fallback is FallbackReason.VETO


def test_a_fetch_is_not_vetoed_when_it_is_fast_or_the_engine_is_busy_or_something_else_is_waited_for() -> None:
    fast = EngineWorld(veto_ratio=2.0, peer_link=_link(bytes_per_s=1e6))
    fast.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)], wait_budget_s=9.0))
    assert len(fast.fetches) == 1
    busy = EngineWorld(veto_ratio=2.0, peer_link=_link(bytes_per_s=100.0))
    busy.submit(unplanned("before", passage(9, 8)))
    busy.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)], wait_budget_s=9.0))
    assert len(busy.fetches) == 1
    waiting = EngineWorld(veto_ratio=2.0, peer_link=_link(bytes_per_s=100.0))
    spans = [span(TOKENS, 8, 28, Source.FETCH, PEER), span(TOKENS, 28, 40, Source.COMPUTE_AT, OTHER_PEER)]
    waiting.submit(planned("a", TOKENS, spans, wait_budget_s=9.0))
    assert len(waiting.fetches) == 2


def test_loads_are_charged_to_the_step_in_which_the_prompt_is_first_scheduled() -> None:
    world = EngineWorld(max_step_tokens=10)
    world.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)], wait_budget_s=1.0))
    finish_fetch(world, "a", FIRST)
    world.run()
    # 25 new and 2 recomputed tokens in chunks of 10; 18 loaded tokens.
    assert [step.num_tokens for step in world.steps] == [10, 10, 7]
    assert [step.load_s for step in world.steps] == [pytest.approx(18 * LOAD_COST.segment_s_per_token), 0.0, 0.0]
    assert world.steps[0].duration_s == pytest.approx(10 * TOKEN_S + 18 * LOAD_COST.segment_s_per_token)


def test_a_plan_whose_spans_do_not_fit_the_prompt_is_used_as_far_as_it_fits() -> None:
    wrong = span(TOKENS, 8, 28)
    outside = span(TOKENS, 28, 40)
    request = planned("a", TOKENS[:36], [wrong, outside])
    assert [plan.start for plan in request.segments] == [8]
    shifted = planned("b", join(passage(9, BLOCK), TOKENS), [wrong])
    assert shifted.segments == ()
    overlapping = planned("c", TOKENS, [span(TOKENS, 8, 28), span(TOKENS, 20, 40)])
    assert [plan.start for plan in overlapping.segments] == [8]


def _link(bytes_per_s: float) -> LinkFit:
    return LinkFit(floor_s=0.001, bytes_per_s=bytes_per_s)
