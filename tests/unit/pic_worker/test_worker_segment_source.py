"""What a peer that asks for segments is told, and when."""

import pytest
from support.engine_world import OWN, PEER, EngineWorld, fetch_of, helper, join, passage, planned, span, unplanned

from nebula_protocol.hashing import hash_segment
from nebula_protocol.ids import Origin, RequestId
from nebula_protocol.messages import FetchedSegment, FetchRequest
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason
from nebula_protocol.tokens import TokenArray, token_bytes
from pic_worker.core.effects import TicketId

TICKET = TicketId(1)
FIRST, SECOND = passage(1, 20), passage(2, 12)


def world_with_first() -> EngineWorld:
    world = EngineWorld(store_capacity_tokens=24, prefix_ratio=0.0)
    world.serve(helper("h", FIRST))
    return world


def ask(world: EngineWorld, request: FetchRequest, ticket: TicketId = TICKET) -> None:
    world.take(world.engine.serve_fetch(request, ticket, world.now_s))


def is_yes(world: EngineWorld, ticket: TicketId = TICKET) -> list[bool]:
    return [segment.token_bytes is not None for segment in world.answers[ticket].segments]


def wait(world: EngineWorld, seconds: float) -> None:
    world.now_s += seconds
    world.take(world.engine.advance(world.now_s))


def fill_store(world: EngineWorld, passage_tokens: TokenArray) -> None:
    world.serve(helper("filler", passage_tokens))


def test_what_is_here_is_answered_with_its_tokens_and_what_is_not_with_no() -> None:
    world = world_with_first()
    ask(world, fetch_of(FIRST, SECOND))
    answer = world.answers[TICKET]
    assert answer.segments == (
        FetchedSegment(
            segment_hash=hash_segment(FIRST), token_bytes=token_bytes(FIRST), origin=Origin.ALONE, kv_bytes=200
        ),
        FetchedSegment(segment_hash=hash_segment(SECOND), token_bytes=None),
    )
    assert answer.kv_bytes == 200


def test_a_fetch_does_not_wait_for_what_is_being_computed_but_a_join_does() -> None:
    world = EngineWorld()
    world.submit(helper("h", FIRST))
    ask(world, fetch_of(FIRST, wait_s=1.0), TicketId(1))
    ask(world, fetch_of(FIRST, wait_s=1.0, join_them=True), TicketId(2))
    assert is_yes(world, TicketId(1)) == [False]
    assert TicketId(2) not in world.answers
    world.run()
    assert is_yes(world, TicketId(2)) == [True]


def test_one_answer_comes_when_the_last_segment_is_decided() -> None:
    world = world_with_first()
    world.submit(unplanned("a", join(passage(9, 4), passage(3, 4)), [(4, 8)]))
    ask(world, fetch_of(FIRST, passage(3, 4), wait_s=1.0, join_them=True))
    assert TICKET not in world.answers
    world.run()
    assert is_yes(world) == [True, True]


def test_a_join_is_declined_when_its_time_is_up() -> None:
    world = EngineWorld()
    tokens = join(passage(9, 8), FIRST)
    world.submit(planned("a", tokens, [span(tokens, 8, 28, Source.FETCH, PEER)], wait_budget_s=9.0))
    ask(world, fetch_of(FIRST, wait_s=1.0, join_them=True))
    wait(world, 0.9)
    assert TICKET not in world.answers
    wait(world, 0.1)
    assert is_yes(world) == [False]


def test_a_join_of_something_unknown_waits_a_little_since_its_request_may_be_on_its_way() -> None:
    world = EngineWorld(join_grace_s=0.25)
    ask(world, fetch_of(FIRST, wait_s=1.0, join_them=True))
    assert world.engine.next_deadline_s() == pytest.approx(0.25)
    wait(world, 0.25)
    assert is_yes(world) == [False]


def test_a_join_that_came_before_its_helper_is_answered_by_it() -> None:
    world = EngineWorld(join_grace_s=0.25)
    ask(world, fetch_of(FIRST, wait_s=9.0, join_them=True))
    wait(world, 0.2)
    world.submit(helper("h", FIRST))
    wait(world, 1.0)
    assert TICKET not in world.answers
    world.run()
    assert is_yes(world) == [True]


def test_a_join_is_declined_at_once_when_the_last_request_that_produces_it_is_gone() -> None:
    world = EngineWorld()
    tokens = join(passage(9, 8), FIRST)
    world.submit(helper("h", FIRST))
    world.submit(planned("a", tokens, [span(tokens, 8, 28)]))
    ask(world, fetch_of(FIRST, wait_s=9.0, join_them=True))
    world.take(world.engine.abort(RequestId("h"), world.now_s))
    assert TICKET not in world.answers
    world.take(world.engine.abort(RequestId("a"), world.now_s))
    assert is_yes(world) == [False]


def test_a_join_is_declined_when_the_store_refuses_what_was_computed() -> None:
    world = EngineWorld(store_capacity_tokens=8)
    world.submit(helper("h", FIRST))
    ask(world, fetch_of(FIRST, wait_s=9.0, join_them=True))
    world.run()
    assert is_yes(world) == [False]


def test_a_join_need_not_wait_for_the_rest_of_a_helpers_work_to_be_declined() -> None:
    world = EngineWorld(store_capacity_tokens=8, max_step_tokens=20)
    world.submit(helper("h", FIRST, SECOND))
    ask(world, fetch_of(FIRST, wait_s=9.0, join_them=True))
    world.step()
    assert "h" not in world.receipts
    assert is_yes(world) == [False]


def test_a_joined_fetch_that_fails_here_goes_on_with_what_is_computed_instead() -> None:
    world = EngineWorld()
    tokens = join(passage(9, 8), FIRST)
    world.submit(planned("a", tokens, [span(tokens, 8, 28, Source.FETCH, PEER)], wait_budget_s=9.0))
    ask(world, fetch_of(FIRST, wait_s=9.0, join_them=True))
    world.take(
        world.engine.fetch_finished(RequestId("a"), hash_segment(FIRST), FallbackReason.SOURCE_GONE, world.now_s)
    )
    assert TICKET not in world.answers
    world.run()
    assert is_yes(world) == [True]


def test_a_promised_segment_stays_until_the_transfer_is_over() -> None:
    world = world_with_first()
    ask(world, fetch_of(FIRST))
    fill_store(world, passage(5, 24))
    assert world.engine.state_snapshot().segments[0].segment_hash == hash_segment(FIRST)
    world.engine.close_fetch(TICKET)
    world.engine.close_fetch(TICKET)
    fill_store(world, passage(6, 24))
    assert [entry.num_tokens for entry in world.engine.state_snapshot().segments] == [24]


def test_a_lease_ends_by_itself() -> None:
    world = world_with_first()
    ask(world, fetch_of(FIRST))
    assert world.engine.next_deadline_s() == pytest.approx(world.now_s + 2.0)
    wait(world, 2.0)
    assert world.engine.stats().store_pinned_tokens == 0
    assert world.engine.next_deadline_s() is None


def test_a_fetch_that_is_closed_before_it_is_decided_gets_no_answer() -> None:
    world = EngineWorld()
    world.submit(helper("h", FIRST))
    ask(world, fetch_of(FIRST, wait_s=1.0, join_them=True))
    world.engine.close_fetch(TICKET)
    world.run()
    assert world.answers == {}
    assert world.engine.stats().store_pinned_tokens == 0


def test_a_segment_of_another_length_is_not_the_one_wanted() -> None:
    world = world_with_first()
    request = fetch_of(FIRST)
    wrong = FetchRequest(
        request_id=request.request_id,
        from_worker=request.from_worker,
        domain_id=request.domain_id,
        wait_s=0.0,
        segments=(type(request.segments[0])(segment_hash=hash_segment(FIRST), num_tokens=19),),
    )
    ask(world, wrong)
    assert is_yes(world) == [False]


def test_asking_for_nothing_is_answered_with_nothing() -> None:
    world = EngineWorld()
    ask(world, fetch_of())
    assert world.answers[TICKET].segments == ()
    assert world.engine.next_deadline_s() is None


def test_a_worker_that_joins_itself_is_no_peer() -> None:
    world = EngineWorld()
    tokens = join(passage(9, 8), FIRST)
    world.submit(planned("a", tokens, [span(tokens, 8, 28, Source.FETCH, OWN)], wait_budget_s=1.0))
    assert world.fetches == []
