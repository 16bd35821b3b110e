"""Copies that come layer by layer: a step begins before all is there, and peers get what a step is computing.

Tokens take 1 ms to compute and 1 ms to load; two of each reused segment are computed again. Four pieces make up a copy.
"""

import math

import pytest
from support.engine_world import (
    OTHER_PEER,
    PEER,
    EngineWorld,
    fetch_of,
    helper,
    join,
    passage,
    planned,
    span,
    unplanned,
)

from nebula_protocol.hashing import hash_segment
from nebula_protocol.ids import Origin, RequestId
from nebula_protocol.messages import FetchedSegment
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason
from nebula_protocol.tokens import TokenArray, token_bytes
from pic_worker.core.effects import TicketId
from pic_worker.core.stream import Stream, overlapped_s

PIECES = 4
TICKET = TicketId(1)
LEAD, SEGMENT, QUESTION = passage(1, 8), passage(2, 20), passage(3, 12)
TOKENS = join(LEAD, SEGMENT, QUESTION)
# 8 + 2 + 12 tokens are computed in 22 ms and 18 loaded in 18 ms, of which a quarter shows.
STEP_S = 0.022 + 0.0045


def arrived(tokens: TokenArray) -> FetchedSegment:
    return FetchedSegment(
        segment_hash=hash_segment(tokens), token_bytes=token_bytes(tokens), origin=Origin.IN_CONTEXT, kv_bytes=200
    )


def finish_fetch(world: EngineWorld, outcome: FetchedSegment | FallbackReason | None = None) -> None:
    result = outcome or arrived(SEGMENT)
    world.take(world.engine.fetch_finished(RequestId("a"), hash_segment(SEGMENT), result, world.now_s))


def streaming(world: EngineWorld, first_at_s: float, last_at_s: float) -> None:
    """The prompt is submitted, and its segment known to come."""
    world.submit(planned("a", TOKENS, [span(TOKENS, 8, 28, Source.FETCH, PEER)], wait_budget_s=1.0))
    stream = Stream(first_at_s, last_at_s)
    world.engine.fetch_streams(RequestId("a"), hash_segment(SEGMENT), stream, world.now_s)


def test_a_stream_is_of_use_when_no_piece_comes_later_than_its_layers() -> None:
    # The last of 4 pieces is wanted when 3/4 of a step are over.
    assert Stream(1.0, 10.0).usable_at_s(4.0, PIECES) == 7.0
    # The first piece is wanted when the step begins.
    assert Stream(9.0, 10.0).usable_at_s(4.0, PIECES) == 9.0
    assert Stream(1.0, 10.0).usable_at_s(4.0, 1) == 10.0


def test_loading_is_hidden_behind_computing_but_for_one_piece() -> None:
    assert overlapped_s(8.0, 2.0, PIECES) == 8.5
    # Loading takes longer: the last piece's layers are computed when it is there.
    assert overlapped_s(2.0, 8.0, PIECES) == 8.5
    assert overlapped_s(8.0, 2.0, 1) == 10.0
    assert overlapped_s(8.0, 0.0, PIECES) == 8.0


def test_a_step_begins_while_its_segment_still_arrives() -> None:
    world = EngineWorld(stream_pieces=PIECES)
    streaming(world, 0.005, 0.050)
    assert world.begin_step() is None
    # 50 ms - 3/4 * 26.5 ms
    assert world.engine.next_deadline_s() == pytest.approx(0.030125)
    world.now_s = 0.030125
    step = world.begin_step()
    assert step is not None
    assert step.duration_s == pytest.approx(STEP_S)
    assert world.engine.step_stall_s(0.040) == math.inf
    world.now_s = 0.050
    finish_fetch(world)
    # The last quarter of the step is computed when the last piece is there.
    assert world.engine.step_stall_s(0.050) == pytest.approx(0.006625)
    world.now_s += 0.006625
    assert world.engine.step_stall_s(world.now_s) == 0.0
    world.take(world.engine.finish_step(world.now_s))
    receipt = world.receipts["a"]
    (outcome,) = receipt.segments
    assert (outcome.done, outcome.fallback, outcome.origin, outcome.stored) == (
        Source.FETCH,
        None,
        Origin.IN_CONTEXT,
        True,
    )
    assert (receipt.fetched_hit_tokens, receipt.computed_tokens, receipt.recomputed_tokens) == (20, 20, 2)
    assert (receipt.timing.wait_s, receipt.timing.compute_s) == pytest.approx((0.030125, STEP_S))


def test_whole_copies_are_waited_for_where_nothing_comes_in_pieces() -> None:
    world = EngineWorld()
    streaming(world, 0.005, 0.050)
    world.now_s = 0.049
    assert world.begin_step() is None
    world.now_s = 0.050
    finish_fetch(world)
    assert world.begin_step() is not None


def test_all_segments_must_be_known_to_come() -> None:
    world = EngineWorld(stream_pieces=PIECES)
    tokens = join(LEAD, SEGMENT, passage(4, 20), QUESTION)
    plan = [span(tokens, 8, 28, Source.FETCH, PEER), span(tokens, 28, 48, Source.FETCH, OTHER_PEER)]
    world.submit(planned("a", tokens, plan, wait_budget_s=1.0))
    world.engine.fetch_streams(RequestId("a"), hash_segment(SEGMENT), Stream(0.0, 0.001), 0.0)
    world.now_s = 0.1
    assert world.begin_step() is None
    world.engine.fetch_streams(RequestId("a"), hash_segment(passage(4, 20)), Stream(0.1, 0.101), world.now_s)
    assert world.begin_step() is not None


def test_a_copy_that_breaks_off_is_computed_in_another_step() -> None:
    world = EngineWorld(stream_pieces=PIECES)
    streaming(world, 0.0, 0.010)
    step = world.begin_step()
    assert step is not None
    finish_fetch(world, FallbackReason.SOURCE_GONE)
    world.end_step(step)
    assert "a" not in world.receipts
    # The segment's 20 tokens and the 12 behind it.
    again = world.step()
    assert again is not None
    assert again.num_tokens == 32
    receipt = world.receipts["a"]
    (outcome,) = receipt.segments
    assert (outcome.done, outcome.fallback, outcome.stored) == (Source.COMPUTE, FallbackReason.SOURCE_GONE, True)
    assert (receipt.segment_hit_tokens, receipt.computed_tokens) == (0, 40)
    assert world.engine.stats().num_segments_in_flight == 0


def test_a_prompt_that_is_aborted_while_its_segment_streams_holds_nobody_up() -> None:
    world = EngineWorld(stream_pieces=PIECES)
    streaming(world, 0.0, 0.010)
    step = world.begin_step()
    assert step is not None
    world.take(world.engine.abort(RequestId("a"), world.now_s))
    assert world.engine.step_stall_s(world.now_s) == 0.0
    world.end_step(step)
    stats = world.engine.stats()
    assert (stats.device_held_blocks, stats.num_segments_in_flight, stats.store_pinned_tokens) == (0, 0, 0)


def test_a_join_is_answered_when_the_step_begins_that_computes_the_segment() -> None:
    world = EngineWorld(stream_pieces=PIECES)
    world.submit(unplanned("maker", join(LEAD, SEGMENT), [(8, 28)]))
    world.take(world.engine.serve_fetch(fetch_of(SEGMENT, wait_s=1.0, join_them=True), TICKET, 0.0))
    assert TICKET not in world.answers
    world.now_s = 0.1
    assert world.begin_step() is not None
    world.take(world.engine.advance(world.now_s))
    answer = world.answers[TICKET]
    # 28 tokens
    assert answer.production is not None
    assert tuple(answer.production) == pytest.approx((0.1, 0.128))
    assert [segment.token_bytes for segment in answer.segments] == [token_bytes(SEGMENT)]
    assert answer.kv_bytes == 200


def test_a_join_that_comes_during_the_step_is_answered_at_once() -> None:
    world = EngineWorld(stream_pieces=PIECES)
    world.submit(helper("h", SEGMENT))
    step = world.begin_step()
    assert step is not None
    world.take(world.engine.serve_fetch(fetch_of(SEGMENT, wait_s=1.0, join_them=True), TICKET, 0.010))
    production = world.answers[TICKET].production
    assert production is not None
    assert tuple(production) == pytest.approx((0.0, 0.020))
    assert world.answers[TICKET].segments[0].origin is Origin.ALONE
    world.end_step(step)
    world.take(world.engine.serve_fetch(fetch_of(SEGMENT), TicketId(2), world.now_s))
    assert world.answers[TicketId(2)].production is None


def test_a_segment_that_needs_another_step_is_not_promised_yet() -> None:
    world = EngineWorld(stream_pieces=PIECES, max_step_tokens=16)
    world.submit(unplanned("maker", join(LEAD, SEGMENT), [(8, 28)]))
    world.take(world.engine.serve_fetch(fetch_of(SEGMENT, wait_s=1.0, join_them=True), TICKET, 0.0))
    step = world.begin_step()
    assert step is not None
    world.end_step(step)
    assert TICKET not in world.answers
    assert world.begin_step() is not None
    world.take(world.engine.advance(world.now_s))
    # The second step's 12 tokens.
    production = world.answers[TICKET].production
    assert production is not None
    assert tuple(production) == pytest.approx((0.016, 0.028))
