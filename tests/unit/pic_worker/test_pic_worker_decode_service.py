"""The decode half: obtaining a prompt's KV, and the pace of tokens."""

import asyncio

import pytest
from support.engine_world import TOKEN_S as COMPUTE_S
from support.engine_world import linear_table, passage, unplanned
from support.fake_peers import FakePeers
from support.virtual_time import now_s
from support.worker_net import LINK, NetWorker, WorkerNet

from nebula_protocol.handover import Handover
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import PeerReply, PeerRequest, PromptPulled, PullPrompt
from pic_worker.core.fixed_answer import FixedAnswer
from pic_worker.core.link import Link
from pic_worker.core.step_cost import StepCost
from pic_worker.decode_service import DecodeService
from pic_worker.errors import PromptGoneError

DECODE_WORKER = WorkerId(99)
TOKEN_S = 0.010
ANSWER = (40, 41, 42)


def decoder(peers: FakePeers) -> DecodeService:
    return DecodeService(
        worker_id=DECODE_WORKER,
        peers=peers,
        link=Link(LINK),
        link_fit=LINK,
        step_cost=StepCost(linear_table()),
        clock=asyncio.get_running_loop().time,
        token_s=TOKEN_S,
        answer=FixedAnswer(ANSWER),
    )


async def prefilled(worker: NetWorker, request_id: str = "r", num_tokens: int = 28) -> Handover:
    return await worker.service.prefill(unplanned(request_id, passage(1, num_tokens), hold_prompt=True))


async def test_taking_over_lasts_as_long_as_the_transfer_and_frees_the_prompt(net: WorkerNet) -> None:
    worker = net.add(1)
    handover = await prefilled(worker)
    began_s = now_s()
    await decoder(net.peers).take_over(handover)
    # 1 ms floor, and 28 tokens of 10 bytes at 1e5 bytes/s.
    assert now_s() - began_s == pytest.approx(0.001 + 0.0028)
    assert worker.engine.stats().num_held == 0


async def test_prompts_from_two_workers_share_the_link_that_takes_them_in(net: WorkerNet) -> None:
    handovers = await asyncio.gather(*(prefilled(net.add(number), num_tokens=40) for number in (1, 2)))
    decode, began_s = decoder(net.peers), now_s()
    await asyncio.gather(*map(decode.take_over, handovers))
    # Each sends 400 bytes in 4 ms; the second's follow the first's.
    assert now_s() - began_s == pytest.approx(0.001 + 0.004 + 0.004)


async def test_a_prompt_is_taken_over_only_once(net: WorkerNet) -> None:
    decode, handover = decoder(net.peers), await prefilled(net.add(1))
    await decode.take_over(handover)
    with pytest.raises(PromptGoneError):
        await decode.take_over(handover)


async def test_a_prompt_that_was_held_too_long_is_gone(net: WorkerNet) -> None:
    handover = await prefilled(net.add(1, prompt_hold_s=5.0))
    await asyncio.sleep(5.1)
    with pytest.raises(PromptGoneError):
        await decoder(net.peers).take_over(handover)


async def test_a_dead_prefill_workers_prompt_is_gone_at_once(net: WorkerNet) -> None:
    handover = await prefilled(net.add(1))
    net.peers.leave(handover.prefill_worker_id)
    began_s = now_s()
    with pytest.raises(PromptGoneError):
        await decoder(net.peers).take_over(handover)
    assert now_s() == began_s


class Silent:
    async def answer_peer(self, request: PeerRequest) -> PeerReply:
        await asyncio.sleep(1000)
        return PromptPulled(found=True, kv_bytes=1)


async def test_a_silent_prefill_workers_prompt_is_gone_after_the_transfer_and_a_grace(net: WorkerNet) -> None:
    handover = await prefilled(net.add(1))
    net.peers.join(handover.prefill_worker_id, Silent())
    began_s = now_s()
    with pytest.raises(PromptGoneError):
        await decoder(net.peers).take_over(handover)
    # 3.8 ms of transfer, and 10 s.
    assert now_s() - began_s == pytest.approx(10.0038)


async def test_the_pull_names_the_request_and_who_pulls(net: WorkerNet) -> None:
    handover = await prefilled(net.add(1))
    asked: list[PeerRequest] = []

    class Asked:
        async def answer_peer(self, request: PeerRequest) -> PeerReply:
            asked.append(request)
            return PromptPulled(found=True, kv_bytes=handover.kv_bytes)

    net.peers.join(handover.prefill_worker_id, Asked())
    await decoder(net.peers).take_over(handover)
    assert asked == [PullPrompt(request_id=handover.request_id, from_worker=DECODE_WORKER)]


async def test_kv_that_is_held_costs_the_transfer_and_no_computing(net: WorkerNet) -> None:
    handover = await prefilled(net.add(1))
    began_s = now_s()
    await decoder(net.peers).obtain(handover, 28)
    assert now_s() - began_s == pytest.approx(0.001 + 0.0028)


async def test_kv_of_a_dead_prefill_worker_costs_the_computing_of_all_tokens(net: WorkerNet) -> None:
    handover = await prefilled(net.add(1))
    net.peers.leave(handover.prefill_worker_id)
    began_s = now_s()
    # With the first token, which the prefill worker has not computed either.
    await decoder(net.peers).obtain(handover, 29)
    assert now_s() - began_s == pytest.approx(29 * COMPUTE_S)


async def test_kv_that_was_dropped_costs_the_computing_behind_the_prefill_workers_no(net: WorkerNet) -> None:
    decode, handover = decoder(net.peers), await prefilled(net.add(1))
    await decode.take_over(handover)
    began_s = now_s()
    await decode.obtain(handover, 28)
    assert now_s() - began_s == pytest.approx(28 * COMPUTE_S)


async def test_kv_of_a_silent_prefill_worker_costs_the_wait_and_the_computing(net: WorkerNet) -> None:
    handover = await prefilled(net.add(1))
    net.peers.join(handover.prefill_worker_id, Silent())
    began_s = now_s()
    await decoder(net.peers).obtain(handover, 28)
    assert now_s() - began_s == pytest.approx(10.0038 + 28 * COMPUTE_S)


async def test_a_prompt_without_a_handover_is_computed_at_the_price_of_one_step(net: WorkerNet) -> None:
    began_s = now_s()
    await decoder(net.peers).obtain(None, 40)
    assert now_s() - began_s == pytest.approx(40 * COMPUTE_S)


async def test_tokens_come_at_a_fixed_pace_however_long_the_reader_takes(net: WorkerNet) -> None:
    came_s = []
    async for _ in decoder(net.peers).tokens(num_before=0, num_tokens=4):
        came_s.append(now_s())
        # The reader needs 4 of the 10 ms until the next token.
        await asyncio.sleep(0.004)
    assert came_s == pytest.approx([0.010, 0.020, 0.030, 0.040])


async def test_the_answer_repeats_and_goes_on_where_it_was_broken_off(net: WorkerNet) -> None:
    decode = decoder(net.peers)
    whole = [token async for token in decode.tokens(num_before=0, num_tokens=7)]
    assert whole == [40, 41, 42, 40, 41, 42, 40]
    rest = [token async for token in decode.tokens(num_before=2, num_tokens=5)]
    assert rest == whole[2:]


async def test_many_answers_are_decoded_at_once(net: WorkerNet) -> None:
    decode = decoder(net.peers)

    async def answer() -> list[int]:
        return [token async for token in decode.tokens(num_before=0, num_tokens=10)]

    await asyncio.gather(*(answer() for _ in range(20)))
    assert now_s() == pytest.approx(10 * TOKEN_S)
