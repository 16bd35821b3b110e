"""The simulated decode worker: what it says, when, and what its prefill worker is left with."""

import asyncio
from typing import Any, cast

import pytest
from msgspec import structs
from nats.aio.client import Client
from support.engine_world import TOKEN_S as COMPUTE_S
from support.engine_world import join, linear_table, passage, unplanned
from support.virtual_time import now_s
from support.worker_net import LINK, NetWorker, WorkerNet

from nebula_protocol.annotations import RequestOptions
from nebula_protocol.handover import Handover, Sampled
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.tokens import TokenArray, as_token_array
from pic_worker.adapters.sim.workers import SimDecodeWorker
from pic_worker.core.fixed_answer import FixedAnswer
from pic_worker.core.link import Link
from pic_worker.core.step_cost import StepCost
from pic_worker.decode_service import DecodeService
from pic_worker.work import WorkRequest

TOKEN_S = 0.010
ANSWER = FixedAnswer((40, 41, 42))
PROMPT = passage(1, 28)
TRANSFER_S = 0.001 + 0.0028
GUIDED: dict[str, object] = {"sampling_options": {"guided_decoding": {"regex": "[0-9]+"}}}


def decoder(net: WorkerNet) -> SimDecodeWorker:
    service = DecodeService(
        worker_id=WorkerId(99),
        peers=net.peers,
        link=Link(LINK),
        link_fit=LINK,
        step_cost=StepCost(linear_table()),
        clock=asyncio.get_running_loop().time,
        token_s=TOKEN_S,
        answer=ANSWER,
    )
    return SimDecodeWorker(
        service=service, answer=ANSWER, device_capacity_tokens=400, context_tokens=10_000, client=cast("Client", None)
    )


async def prefilled(worker: NetWorker, tokens: TokenArray = PROMPT, reason: str = "length") -> Handover:
    handover = await worker.service.prefill(unplanned("r", tokens, hold_prompt=True))
    return structs.replace(handover, first=Sampled((ANSWER.token(ANSWER.num_said(tokens.tolist())),), reason))


async def heard(
    decode: SimDecodeWorker,
    handover: Handover | None,
    max_tokens: int | None = 4,
    *,
    tokens: TokenArray = PROMPT,
    body: dict[str, object] | None = None,
) -> list[tuple[Any, int, str | None]]:
    """Seconds since the question, token, and why the answer ends with it."""
    began_s, pieces = now_s(), []
    work = WorkRequest(tokens, max_tokens, RequestOptions(), None, None, body or {})
    async for piece in decode.decode(RequestId("d"), work, handover):
        (token,) = piece.token_ids
        pieces.append((pytest.approx(now_s() - began_s), token, piece.finish_reason))
    return pieces


async def test_the_first_token_comes_at_once_and_the_others_behind_the_kv(net: WorkerNet) -> None:
    handover = await prefilled(net.add(1))
    assert await heard(decoder(net), handover, 3) == [
        (0.0, 40, None),
        (TRANSFER_S + TOKEN_S, 41, None),
        (TRANSFER_S + 2 * TOKEN_S, 42, "length"),
    ]


async def test_lost_kv_delays_the_second_token_by_the_time_of_computing_and_not_the_first(net: WorkerNet) -> None:
    handover = await prefilled(net.add(1))
    net.peers.leave(handover.prefill_worker_id)
    computing_s = 29 * COMPUTE_S
    assert await heard(decoder(net), handover, 2) == [(0.0, 40, None), (computing_s + TOKEN_S, 41, "length")]


async def test_a_prompt_without_a_handover_is_computed_before_the_first_token(net: WorkerNet) -> None:
    assert await heard(decoder(net), None, 1) == [(28 * COMPUTE_S + TOKEN_S, 40, "length")]


async def test_with_a_grammar_the_first_token_is_made_here_from_the_kv_of_prefill(net: WorkerNet) -> None:
    handover = await prefilled(net.add(1))
    assert await heard(decoder(net), handover, 2, body=GUIDED) == [
        (TRANSFER_S + TOKEN_S, 40, None),
        (TRANSFER_S + 2 * TOKEN_S, 41, "length"),
    ]


@pytest.mark.parametrize(("max_tokens", "reason"), [(1, "length"), (5, "stop")])
async def test_an_answer_of_one_token_ends_at_once_and_its_kv_is_freed_behind_it(
    net: WorkerNet, max_tokens: int, reason: str
) -> None:
    worker = net.add(1)
    handover, decode = await prefilled(worker, reason=reason), decoder(net)
    assert await heard(decode, handover, max_tokens) == [(0.0, 40, reason)]
    assert worker.engine.stats().num_held == 1
    await asyncio.gather(*decode.background)
    assert worker.engine.stats().num_held == 0
    assert decode.background == set()


async def test_an_answer_of_one_token_does_not_care_that_its_prefill_worker_is_dead(net: WorkerNet) -> None:
    handover, decode = await prefilled(net.add(1)), decoder(net)
    net.peers.leave(handover.prefill_worker_id)
    assert await heard(decode, handover, 1) == [(0.0, 40, "length")]
    await asyncio.gather(*decode.background)


async def test_an_answer_without_a_limit_ends_after_16_tokens(net: WorkerNet) -> None:
    handover = await prefilled(net.add(1))
    pieces = await heard(decoder(net), handover, None)
    assert len(pieces) == 16
    assert pieces[-1][2] == "length"


@pytest.mark.parametrize("has_handover", [True, False])
@pytest.mark.parametrize("num_said", range(1, 7))
async def test_an_answer_that_another_worker_began_goes_on_behind_its_tokens(
    net: WorkerNet, num_said: int, *, has_handover: bool
) -> None:
    whole = [ANSWER.token(index) for index in range(8)]
    tokens = join(PROMPT, as_token_array(whole[:num_said]))
    handover = await prefilled(net.add(1), tokens) if has_handover else None
    pieces = await heard(decoder(net), handover, 8 - num_said, tokens=tokens)
    assert [token for _, token, _ in pieces] == whole[num_said:]
