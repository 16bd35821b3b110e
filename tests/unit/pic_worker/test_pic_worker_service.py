"""The service over one real engine: answers, cancellation, refusals, events, the clock."""

import asyncio
from collections.abc import Callable

import pytest
from support.engine_world import helper, join, passage, planned, span, unplanned
from support.virtual_time import now_s, virtual_loop
from support.worker_net import EPOCH, NetWorker, WorkerNet

from nebula_protocol.events import SegmentStored
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.messages import PullPrompt, SetSplit
from nebula_protocol.plan import Source
from nebula_protocol.subjects import Topic
from pic_worker.core.effects import KvStored
from pic_worker.core.engine_request import EngineRequest
from pic_worker.errors import BadWorkError

SEGMENT = passage(1, 20)
DECODE_WORKER = WorkerId(99)


def prompt(request_id: str, number: int, *, hold_prompt: bool = True) -> EngineRequest:
    """28 tokens: 4 of its own, the segment, 4 of its own."""
    tokens = join(passage(10 + number, 4), SEGMENT, passage(50 + number, 4))
    return unplanned(request_id, tokens, [(4, 24)], hold_prompt=hold_prompt)


def assert_nothing_is_held(worker: NetWorker) -> None:
    stats = worker.engine.stats()
    assert (stats.num_waiting, stats.num_running, stats.num_helpers, stats.num_held) == (0, 0, 0, 0)
    assert (stats.device_held_blocks, stats.store_pinned_tokens) == (0, 0)


async def test_a_prompt_is_answered_with_a_receipt_that_adds_up(net: WorkerNet) -> None:
    worker = net.add(1)
    await worker.service.prefill(prompt("first", 0))
    handover = await worker.service.prefill(prompt("second", 1))
    receipt = handover.receipt
    assert (handover.request_id, handover.prefill_worker_id, handover.epoch) == ("second", 1, EPOCH)
    # 28 tokens at 10 bytes.
    assert (handover.prompt_tokens, handover.kv_bytes) == (28, 280)
    assert (receipt.prefix_hit_tokens, receipt.local_hit_tokens, receipt.fetched_hit_tokens) == (0, 20, 0)
    assert receipt.prompt_tokens == receipt.prefix_hit_tokens + receipt.segment_hit_tokens + receipt.computed_tokens
    timing = receipt.timing
    # In a step of its own: 4 + 2 recomputed + 4 computed at 1 ms, 18 loaded at 1 ms.
    assert timing.compute_s == pytest.approx(0.028)
    assert timing.total_s == pytest.approx(timing.queue_s + timing.wait_s + timing.compute_s)
    # Behind the 28 tokens of the first.
    assert now_s() == pytest.approx(0.028 + 0.028)


async def test_a_receipt_names_the_last_events_that_were_published(net: WorkerNet) -> None:
    worker = net.add(1)
    receipt = (await worker.service.prefill(prompt("r", 0))).receipt
    await asyncio.sleep(0)
    assert receipt.last_event_ids[Topic.KV_EVENTS] == worker.block_events.events[-1].event_id
    assert receipt.last_event_ids[Topic.PIC_EVENTS] == worker.segment_events.events[-1].event_id


async def test_events_leave_in_order_with_the_workers_name_and_epoch(net: WorkerNet) -> None:
    worker = net.add(1)
    requests = [unplanned(f"r{n}", join(passage(n, 4), passage(20 + n, 20)), [(4, 24)]) for n in range(3)]
    await asyncio.gather(*map(worker.service.prefill, requests))
    await asyncio.sleep(0)
    assert [event.event_id for event in worker.segment_events.events] == [0, 1, 2]
    assert all(isinstance(event.data, SegmentStored) for event in worker.segment_events.events)
    assert {(payload.worker_id, payload.epoch) for payload in worker.segment_events.payloads} == {(1, EPOCH)}
    assert [event.event_id for event in worker.block_events.events] == [1, 2, 3]
    assert all(isinstance(event, KvStored) for event in worker.block_events.events)


async def test_a_second_request_for_a_segment_in_the_making_waits_for_it_and_computes_it_not_again(
    net: WorkerNet,
) -> None:
    worker = net.add(1)
    first = asyncio.create_task(worker.service.prefill(prompt("first", 0)))
    await asyncio.sleep(0.001)
    tokens = join(passage(11, 4), SEGMENT, passage(51, 4))
    plan = [span(tokens, 4, 24, Source.JOIN, worker.at)]
    second = (await worker.service.prefill(planned("second", tokens, plan, wait_budget_s=1.0))).receipt
    assert (await first).receipt.computed_tokens == 28
    # Of 28 tokens the segment's 20 were reused.
    assert (second.segment_hit_tokens, second.computed_tokens) == (20, 8)
    assert second.segments[0].done is Source.JOIN
    # From 1 ms to the end of the first request's step of 28 ms.
    assert second.timing.wait_s == pytest.approx(0.027)


@pytest.mark.parametrize("after_s", [0.0, 0.010], ids=["before its step", "in its step"])
async def test_a_cancelled_prefill_ends_in_the_engine_too(net: WorkerNet, after_s: float) -> None:
    worker = net.add(1)
    prefill = asyncio.create_task(worker.service.prefill(prompt("r", 0)))
    await asyncio.sleep(after_s)
    prefill.cancel()
    with pytest.raises(asyncio.CancelledError):
        await prefill
    assert_nothing_is_held(worker)
    await asyncio.sleep(1)
    assert worker.segment_events.events == []
    assert (await worker.service.prefill(prompt("r", 0))).prompt_tokens == 28


async def test_a_prefill_that_is_cancelled_as_it_finishes_leaves_no_prompt_held(net: WorkerNet) -> None:
    worker = net.add(1)
    prefill = asyncio.create_task(worker.service.prefill(prompt("r", 0)))
    # The blocks are announced just before the receipt is handed over, which the task notices one turn later.
    worker.block_events.on_publish = lambda: asyncio.get_running_loop().call_soon(prefill.cancel)
    with pytest.raises(asyncio.CancelledError):
        await prefill
    assert len(worker.block_events.events) == 1
    assert_nothing_is_held(worker)


async def test_a_request_that_takes_the_id_of_one_just_finished_gets_its_own_reply(net: WorkerNet) -> None:
    worker = net.add(1)
    first_is_done = asyncio.Event()

    async def prefill_again() -> int:
        await first_is_done.wait()
        return (await worker.service.prefill(unplanned("r", passage(5, 12)))).prompt_tokens

    again = asyncio.create_task(prefill_again())
    worker.block_events.on_publish = first_is_done.set
    assert (await worker.service.prefill(prompt("r", 0))).prompt_tokens == 28
    assert await again == 12


async def test_cancelled_helper_work_ends_in_the_engine_too(net: WorkerNet) -> None:
    worker = net.add(1)
    work = asyncio.create_task(worker.service.help(helper("h", SEGMENT)))
    await asyncio.sleep(0.005)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert_nothing_is_held(worker)


@pytest.mark.parametrize(
    "refused",
    [
        # The device tier has 400 tokens.
        lambda: unplanned("large", passage(0, 404)),
        lambda: unplanned("empty", passage(0, 0)),
        lambda: prompt("there", 0),
    ],
    ids=["too large", "empty", "there already"],
)
async def test_what_can_never_run_is_refused_and_the_worker_goes_on(
    net: WorkerNet, refused: Callable[[], EngineRequest]
) -> None:
    worker = net.add(1)
    there = asyncio.create_task(worker.service.prefill(prompt("there", 0)))
    await asyncio.sleep(0)
    with pytest.raises(BadWorkError):
        await worker.service.prefill(refused())
    assert (await there).prompt_tokens == 28


async def test_helper_work_without_a_segment_that_fits_is_refused(net: WorkerNet) -> None:
    with pytest.raises(BadWorkError):
        await net.add(1).service.help(helper("h", passage(0, 0)))


async def test_a_late_wake_up_does_not_lengthen_the_steps_that_follow(net: WorkerNet) -> None:
    worker = net.add(1)
    prefill = asyncio.create_task(worker.service.prefill(unplanned("r", passage(0, 300))))
    await asyncio.sleep(0.090)
    virtual_loop().stall(0.040)
    await prefill
    # Three steps of 100 tokens end at 100, 200 and 300 ms, although the first was noticed at 130 ms.
    assert now_s() == pytest.approx(0.300)


async def test_prompts_that_come_while_a_step_runs_share_the_next(net: WorkerNet) -> None:
    worker = net.add(1)
    prefills = [worker.service.prefill(unplanned(f"r{n}", passage(n, 20))) for n in range(3)]
    first = asyncio.create_task(prefills[0])
    await asyncio.sleep(0.005)
    receipts = [handover.receipt for handover in await asyncio.gather(first, *prefills[1:])]
    # 20 ms, then both others in one step of 40 ms; they queued from 5 to 20 ms.
    assert [receipt.work.step_tokens for receipt in receipts] == [20, 40, 40]
    assert [receipt.timing.queue_s for receipt in receipts] == pytest.approx([0, 0.015, 0.015])
    assert now_s() == pytest.approx(0.060)


def pull_of(request_id: str) -> PullPrompt:
    return PullPrompt(request_id=RequestId(request_id), from_worker=DECODE_WORKER)


async def test_a_pulled_prompt_is_freed_once_its_kv_was_sent(net: WorkerNet) -> None:
    worker = net.add(1)
    await worker.service.prefill(prompt("r", 0))
    began_s = now_s()
    # 28 tokens in blocks of 4.
    assert worker.engine.stats().device_held_blocks == 7
    pulled = await net.peers.pull_prompt(worker.at.worker_id, pull_of("r"), 1.0)
    assert (pulled.found, pulled.kv_bytes) == (True, 280)
    # 1 ms floor and 280 bytes at 1e5 bytes/s.
    assert now_s() - began_s == pytest.approx(0.001 + 0.0028)
    assert_nothing_is_held(worker)
    again = await net.peers.pull_prompt(worker.at.worker_id, pull_of("r"), 1.0)
    assert (again.found, again.kv_bytes) == (False, 0)


async def test_a_prompt_that_waits_for_room_runs_as_soon_as_another_was_pulled(net: WorkerNet) -> None:
    # 11 blocks, of which each prompt takes 7.
    worker = net.add(1, device_capacity_tokens=44)
    await worker.service.prefill(prompt("r", 0))
    waiting = asyncio.create_task(worker.service.prefill(prompt("waits", 1)))
    await asyncio.sleep(1)
    await net.peers.pull_prompt(worker.at.worker_id, pull_of("r"), 1)
    pulled_s = now_s()
    await waiting
    # With the segment reused: 10 ms computed, 18 ms loaded.
    assert now_s() - pulled_s == pytest.approx(0.028)


@pytest.mark.parametrize("pulled_after_s", [5.1, 4.998], ids=["before the pull", "while it is sent"])
async def test_a_prompt_that_nobody_pulled_in_time_is_not_found(net: WorkerNet, pulled_after_s: float) -> None:
    worker = net.add(1, prompt_hold_s=5.0)
    await worker.service.prefill(prompt("r", 0))
    # Sending takes 3.8 ms.
    await asyncio.sleep(pulled_after_s)
    assert not (await net.peers.pull_prompt(worker.at.worker_id, pull_of("r"), 1.0)).found
    assert_nothing_is_held(worker)


@pytest.mark.parametrize(("prefix_ratio", "num_segments"), [(0.5, 0), (0.0, 1)])
async def test_the_split_decides_which_class_gives_way(net: WorkerNet, prefix_ratio: float, num_segments: int) -> None:
    worker = net.add(1, device_capacity_tokens=44, store_capacity_tokens=40)
    worker.service.set_split(SetSplit(prefix_ratio=prefix_ratio))
    tokens = join(passage(0, 4), passage(1, 40))
    await worker.service.prefill(unplanned("fills the store", tokens, [(4, 44)]))
    # Drives the first prompt's 11 blocks out of the device tier, into the prefix class's own room if it has any.
    await worker.service.prefill(unplanned("evicts", passage(2, 44)))
    (chunk,) = worker.service.state_chunks()
    assert len(chunk.segments) == num_segments


async def test_every_full_state_has_an_id_of_its_own_and_the_workers_card(net: WorkerNet) -> None:
    worker = net.add(1)
    await worker.service.prefill(prompt("r", 0))
    (first,), (second,) = worker.service.state_chunks(), worker.service.state_chunks()
    assert first.snapshot_id != second.snapshot_id
    assert (first.card.worker_id, first.card.epoch, len(first.blocks), len(first.segments)) == (1, EPOCH, 7, 1)


async def test_requests_for_exact_results_share_blocks_with_each_other_alone(net: WorkerNet) -> None:
    worker = net.add(1)
    tokens = join(passage(10, 4), SEGMENT, passage(50, 4))
    await worker.service.prefill(unplanned("common", tokens, [(4, 24)]))
    first = (await worker.service.prefill(planned("exact", tokens, [span(tokens, 4, 24)], pic=False))).receipt
    again = (await worker.service.prefill(planned("exact again", tokens, pic=False))).receipt
    common = (await worker.service.prefill(unplanned("common again", tokens, [(4, 24)]))).receipt
    assert (first.prefix_hit_tokens, first.segment_hit_tokens, first.segments) == (0, 0, ())
    # All blocks but that of the last token.
    assert (again.prefix_hit_tokens, common.prefix_hit_tokens) == (24, 24)
    stored = [event for event in worker.block_events.events if isinstance(event, KvStored)]
    assert [event.lineage for event in stored] == ["", "exact"]
    assert not set(stored[0].block_hashes) & set(stored[1].block_hashes)


async def test_a_worker_may_end_once_nothing_runs_and_nobody_has_a_prompt_to_pull(net: WorkerNet) -> None:
    worker = net.add(1)
    assert worker.service.is_quiescent()
    prefill = asyncio.create_task(worker.service.prefill(prompt("r", 0)))
    await asyncio.sleep(0.001)
    assert not worker.service.is_quiescent()
    await prefill
    assert not worker.service.is_quiescent()
    await net.peers.pull_prompt(worker.at.worker_id, pull_of("r"), 1.0)
    assert worker.service.is_quiescent()
    helping = asyncio.create_task(worker.service.help(helper("h", passage(8, 20))))
    await asyncio.sleep(0.001)
    assert not worker.service.is_quiescent()
    await helping
    assert worker.service.is_quiescent()
