"""A vLLM decode worker's whole answers: the token of prefill first, then the engine's."""

import asyncio
from typing import Any, cast

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from msgspec import structs
from support.engine_decode_world import ENDED, HANDOVER, PREFILL, PROMPT, Completion, DecodeWorld, Engine, settle

from nebula_protocol.annotations import RequestOptions
from nebula_protocol.handover import Handover, Sampled
from nebula_protocol.ids import RequestId
from pic_worker.adapters.vllm.workers import VllmDecodeWorker
from pic_worker.errors import BadWorkError
from pic_worker.work import WorkRequest

GUIDED = {"guided_decoding": {"regex": "[0-9]+"}}


def decoder(world: DecodeWorld, context_tokens: int = 100) -> VllmDecodeWorker:
    return VllmDecodeWorker(
        service=world.service,
        engine=cast("Any", None),
        sampling_defaults={},
        context_tokens=context_tokens,
        main_task=cast("Any", None),
        started=cast("Any", None),
    )


def asking(max_tokens: int | None = 3, **body: object) -> WorkRequest:
    return WorkRequest(PROMPT, max_tokens, RequestOptions(), None, None, {"token_ids": PROMPT.tolist(), **body})


async def answer(
    world: DecodeWorld, work: WorkRequest, handover: Handover | None = HANDOVER, context_tokens: int = 100
) -> list[Sampled]:
    pieces = decoder(world, context_tokens).decode(RequestId("d"), work, handover)
    return [piece async for piece in pieces]


def ending_with(token_id: int, reason: str) -> Handover:
    """Of a prompt whose KV its prefill worker does not hold."""
    return structs.replace(HANDOVER, first=Sampled((token_id,), reason), kv_transfer_params=None)


async def test_the_token_of_prefill_is_said_while_the_kv_is_not_even_asked_for() -> None:
    world = DecodeWorld(Engine([Completion([6]), Completion([7], "length")]))
    pieces = decoder(world).decode(RequestId("d"), asking(), HANDOVER)
    assert await anext(pieces) == Sampled((5,))
    assert (world.prefill.calls, world.engine.asked) == ([], [])
    assert [piece async for piece in pieces] == [Sampled((6,)), Sampled((7,), "length")]


async def test_the_engine_makes_the_rest_behind_the_token_of_prefill() -> None:
    world = DecodeWorld(Engine([ENDED]))
    await answer(world, asking(3, stop_conditions={"min_tokens": 2}))
    ((_, tokens, _, _),) = world.engine.asked
    assert tokens == [*PROMPT.tolist(), 5]
    (params,) = world.engine.params
    assert (params.max_tokens, params.min_tokens) == (2, 1)


async def test_with_a_grammar_the_engine_makes_every_token_from_the_kv_of_prefill() -> None:
    world = DecodeWorld(Engine([Completion([8]), Completion([9], "length")]))
    assert await answer(world, asking(3, sampling_options=GUIDED)) == [Sampled((8,)), Sampled((9,), "length")]
    ((_, tokens, extra_args, _),) = world.engine.asked
    assert tokens == PROMPT.tolist()
    assert "kv_transfer_params" in extra_args
    (params,) = world.engine.params
    assert params.max_tokens == 3
    assert params.structured_outputs.regex == "[0-9]+"


async def test_without_a_handover_the_engine_makes_the_whole_answer() -> None:
    world = DecodeWorld(Engine([Completion([8]), Completion([9], "length")]))
    assert await answer(world, asking(3), None) == [Sampled((8,)), Sampled((9,), "length")]
    ((_, tokens, extra_args, _),) = world.engine.asked
    assert (tokens, extra_args) == (PROMPT.tolist(), None)


@pytest.mark.parametrize("max_tokens", [None, 50])
async def test_an_answer_is_no_longer_than_the_context_leaves_room(max_tokens: int | None) -> None:
    world = DecodeWorld(Engine([ENDED]))
    await answer(world, asking(max_tokens), context_tokens=len(PROMPT) + 4)
    (params,) = world.engine.params
    assert params.max_tokens == 3


async def test_the_last_token_of_the_context_is_that_of_prefill() -> None:
    world = DecodeWorld(Engine())
    assert await answer(world, asking(50), context_tokens=len(PROMPT) + 1) == [Sampled((5,), "length")]


async def test_a_prompt_that_fills_the_context_is_refused() -> None:
    with pytest.raises(BadWorkError, match="no room"):
        await answer(DecodeWorld(Engine()), asking(), context_tokens=len(PROMPT))


async def test_an_answer_of_one_token_frees_the_prompt_by_pulling_it_behind_the_answer() -> None:
    world = DecodeWorld(Engine([Completion([9], "length")]))
    assert await answer(world, asking(1)) == [Sampled((5,), "length")]
    assert (world.prefill.calls, world.engine.asked) == ([], [])
    await settle()
    ((_, tokens, extra_args, salt),) = world.engine.asked
    assert (tokens, salt) == (PROMPT.tolist(), HANDOVER.lineage)
    assert extra_args["kv_transfer_params"]["remote_block_ids"] == [[1, 2]]
    assert world.engine.params[0].max_tokens == 1
    assert world.prefill.calls == [False, True]
    assert world.prefill.held.count(now_s=0.0) == 0


@pytest.mark.parametrize("is_guided", [True, False])
async def test_an_answer_that_prefill_has_ended_costs_the_engine_nothing(*, is_guided: bool) -> None:
    world = DecodeWorld(Engine())
    work = asking(5, sampling_options=GUIDED) if is_guided else asking(5)
    assert await answer(world, work, ending_with(2, "stop")) == [Sampled((2,), "stop")]
    await settle()
    assert (world.prefill.calls, world.engine.asked) == ([], [])


async def test_a_prompt_that_nobody_holds_is_not_pulled_for_its_one_token() -> None:
    world = DecodeWorld(Engine())
    assert await answer(world, asking(1), ending_with(5, "length")) == [Sampled((5,), "length")]
    await settle()
    assert world.engine.asked == []


@pytest.mark.parametrize("is_dead", [True, False])
async def test_a_prompt_that_cannot_be_freed_harms_nobody_and_is_not_computed(*, is_dead: bool) -> None:
    world = DecodeWorld(Engine(num_failing=1))
    if is_dead:
        world.peers.leave(PREFILL)
    # An error in the background would fail the test.
    assert await answer(world, asking(1)) == [Sampled((5,), "length")]
    await settle()
    assert len(world.engine.asked) == (0 if is_dead else 1)
    assert world.engine.num_open == 0
    assert len(asyncio.all_tasks()) == 1
