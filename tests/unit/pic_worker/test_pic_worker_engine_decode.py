"""Decode on an engine that fetches KV by itself: what it is told, and what becomes of requests whose KV is gone."""

import pytest
from msgspec import structs
from support.engine_decode_world import (
    ENDED,
    FAILED,
    HANDOVER,
    PREFILL,
    PROMPT,
    SAID,
    Completion,
    DecodeWorld,
    Engine,
    settle,
)

from nebula_protocol.handover import Sampled
from pic_worker.errors import BadWorkError


async def test_the_answer_comes_piece_by_piece_and_the_prefill_worker_learns_of_the_arrival() -> None:
    world = DecodeWorld(Engine([Completion([5]), Completion([6, 7]), Completion([], "stop")]))
    pieces = await world.answer()
    assert [piece.token_ids for piece in pieces] == [(5,), (6, 7), ()]
    assert [piece.finish_reason for piece in pieces] == [None, None, "stop"]
    await settle()
    assert world.prefill.calls == [False, True]
    assert world.prefill.held.count(now_s=0.0) == 0


async def test_the_engine_is_told_where_the_kv_is_and_how_much_and_under_which_lineage() -> None:
    world = DecodeWorld(Engine([Completion([5], "length")]))
    await world.answer()
    ((request_id, tokens, extra_args, salt),) = world.engine.asked
    assert (request_id, tokens, salt) == ("d", PROMPT.tolist(), "exact/")
    assert extra_args["kv_transfer_params"] == {
        "remote_host": "h",
        "remote_block_ids": [[1, 2]],
        "remote_num_tokens": 11,
    }


async def test_a_prompt_that_is_held_no_longer_is_computed_here_and_not_asked_for() -> None:
    world = DecodeWorld(Engine([ENDED]))
    world.prefill.held.end_transfer(HANDOVER.request_id)
    assert await world.answer() == [SAID]
    world.assert_computed_here(num_asked=1)
    assert world.prefill.calls == [False]


async def test_the_prompt_of_a_dead_prefill_worker_is_computed_here() -> None:
    world = DecodeWorld(Engine([ENDED]))
    world.peers.leave(PREFILL)
    assert await world.answer() == [SAID]
    world.assert_computed_here(num_asked=1)


async def test_a_load_that_fails_is_made_good_by_computing_under_another_name() -> None:
    world = DecodeWorld(Engine([Completion([5]), Completion([6], "length")], num_failing=1))
    assert await world.answer() == [Sampled((5,)), Sampled((6,), "length")]
    world.assert_computed_here(num_asked=2)
    first, second = world.engine.asked
    assert "kv_transfer_params" in first[2]
    # vLLM may still know the first.
    assert first[0] != second[0]
    await settle()
    assert world.prefill.calls == [False]


async def test_a_load_without_end_is_given_up_and_made_good_by_computing() -> None:
    world = DecodeWorld(Engine([ENDED], num_hanging=1), first_token_limit_s=0.001)
    assert await world.answer() == [SAID]
    world.assert_computed_here(num_asked=2)


async def test_a_prompt_without_a_handover_is_computed_here_and_nobody_is_asked() -> None:
    world = DecodeWorld(Engine([Completion([5]), Completion([]), Completion([], "stop")]))
    assert await world.answer(None) == [Sampled((5,)), Sampled((), "stop")]
    world.assert_computed_here(num_asked=1, salt="decoded/")
    assert world.engine.asked[0][0] == "d"
    assert world.prefill.calls == []


async def test_an_error_of_the_engine_while_it_computes_ends_the_answer() -> None:
    world = DecodeWorld(Engine(num_failing=2))
    with pytest.raises(RuntimeError, match="broke the answer off"):
        await world.answer()
    world.assert_computed_here(num_asked=2)


async def test_an_error_behind_the_first_token_ends_the_answer() -> None:
    world = DecodeWorld(Engine([Completion([5]), FAILED]))
    pieces = world.start()
    assert (await anext(pieces)).token_ids == (5,)
    with pytest.raises(RuntimeError, match="broke the answer off"):
        await anext(pieces)
    # Tokens that were said cannot be taken back.
    assert len(world.engine.asked) == 1


@pytest.mark.parametrize("num_failing", [0, 1], ids=["taken over", "computed here"])
async def test_an_answer_that_is_closed_frees_the_engine(num_failing: int) -> None:
    world = DecodeWorld(Engine([Completion([5]), Completion([6])], num_failing=num_failing))
    pieces = world.start()
    await anext(pieces)
    assert world.engine.num_open == 1
    await pieces.aclose()
    assert world.engine.num_open == 0


async def test_a_handover_of_another_engine_is_refused() -> None:
    world = DecodeWorld(Engine())
    with pytest.raises(BadWorkError):
        await world.answer(structs.replace(HANDOVER, kv_transfer_params=None))
    assert world.prefill.calls == []
