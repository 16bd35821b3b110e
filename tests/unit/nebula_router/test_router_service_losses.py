"""Workers that die cost time, never the answer; a client that goes away frees everything."""

import asyncio

import pytest
from support.placement_case import round_card
from support.router_replies import answer_tokens, plan_of, prefill_reply
from support.router_worker_pool import (
    DIES_AFTER_A_CHUNK,
    DIES_AT_ONCE,
    HANGS_AT_ONCE,
    Ending,
    Outcome,
    Script,
    refuses,
)
from support.router_world import RouterWorld, body_of, known_workers, spans, state_of

from nebula_protocol.ids import WorkerId
from nebula_router.errors import NoWorkerError, WorkerRefusedError, WorkersLostError
from nebula_router.metrics import MetricName

PROMPT = list(range(100))
SPAN = spans((20, 80))


def workers_of(world: RouterWorld) -> list[int]:
    """Who was asked to prefill, in order."""
    return [call.worker_id for call in world.prefill.calls]


async def is_free(world: RouterWorld, worker_id: int) -> bool:
    """Whether nothing is queued at this only prefill worker, and nothing is expected of it."""
    num_claims = world.state.view.num_claims
    await world.answer(body_of(list(range(5_000, 5_100)), max_tokens=1), "probe")
    return num_claims == 0 and plan_of(world.prefill.calls_of(worker_id)[-1].request).estimate.free_in_s == 0


@pytest.mark.parametrize("death", [DIES_AT_ONCE, DIES_AFTER_A_CHUNK])
async def test_when_a_prefill_worker_dies_another_takes_over_and_its_entries_are_gone(death: Script) -> None:
    world = RouterWorld(prefill=(1, 2))
    await world.answer(body_of(PROMPT, max_tokens=5, annotations=[SPAN]), "first")
    assert (workers_of(world), world.state.view.num_segments) == ([1], 1)
    world.prefill.script(1, death)
    with_hit = body_of([*range(500, 510), *PROMPT[20:80]], max_tokens=1, annotations=[spans((10, 70))])
    chunk = await world.answer(with_hit, "second")
    assert workers_of(world) == [1, 1, 2]
    # Of 70 prompt tokens.
    assert chunk["token_ids"] == answer_tokens(70, 1)
    assert known_workers(world.state) == {2}
    target = plan_of(world.prefill.calls[-1].request).target
    domain_id = plan_of(world.prefill.calls[-1].request).domain_id
    (segment,) = plan_of(world.prefill.calls[-1].request).segments
    assert segment.source == "compute"
    assert not world.state.view.is_held_elsewhere(domain_id, segment.segment_hash, target)
    assert world.metric(MetricName.RETRIES) == 1


async def test_an_empty_prefill_reply_counts_as_a_death() -> None:
    world = RouterWorld(prefill=(1, 2))
    world.prefill.script(1, Script(Ending.WHOLE, 0))
    assert (await world.answer(body_of(PROMPT)))["token_ids"] == answer_tokens(100, 1)
    assert workers_of(world) == [1, 2]


async def test_every_attempt_is_published_with_its_number() -> None:
    world = RouterWorld()
    world.prefill.script(1, DIES_AT_ONCE)
    await world.answer(body_of(PROMPT))
    assert [(one.attempt, one.plan.target.worker_id) for one in world.decisions.decisions] == [(1, 1), (2, 2)]


async def test_a_request_loses_two_workers_at_most_and_a_third_is_not_touched() -> None:
    world = RouterWorld()
    for worker_id in (1, 2, 3):
        world.prefill.die(worker_id)
    with pytest.raises(WorkersLostError, match="lost prefill workers 1, 2 and is not tried again"):
        await world.answer(body_of(PROMPT, annotations=[SPAN]))
    assert (workers_of(world), known_workers(world.state)) == ([1, 2], {3})
    assert world.state.view.num_claims == 0
    # Placed once, and once anew.
    assert world.metric(MetricName.RETRIES) == 1


async def test_a_worker_that_came_back_is_not_used_for_the_request_that_it_broke_while_there_is_another() -> None:
    world = RouterWorld(prefill=(1, 2))
    world.prefill.script(1, DIES_AT_ONCE)
    asked = asyncio.ensure_future(world.answer(body_of(PROMPT)))
    world.state.remove_worker(WorkerId(2))
    while 1 in known_workers(world.state):
        await asyncio.sleep(0)
    for worker_id in (1, 2):
        world.state.apply_state(state_of(round_card(worker_id)), world.now_s)
    await asked
    assert workers_of(world) == [1, 2]


async def test_a_lone_worker_whose_stream_broke_is_used_again_when_it_is_back() -> None:
    world = RouterWorld(prefill=(1,))
    world.prefill.script(1, DIES_AT_ONCE)
    asked = asyncio.ensure_future(world.answer(body_of(PROMPT)))
    while known_workers(world.state):
        await asyncio.sleep(0)
    world.state.apply_state(state_of(round_card(1)), world.now_s)
    assert (await asked)["token_ids"] == answer_tokens(100, 1)
    assert workers_of(world) == [1, 1]


# ---- nobody there ----


async def test_a_request_waits_for_a_worker_that_comes_later() -> None:
    world = RouterWorld(prefill=(), worker_wait_s=10)
    asked = asyncio.ensure_future(world.answer(body_of(PROMPT)))
    await asyncio.sleep(1)
    world.now_s = 9.9
    await asyncio.sleep(1)
    assert not asked.done()
    world.prefill.join(1)
    world.state.apply_state(state_of(round_card(1)), world.now_s)
    assert (await asked)["token_ids"] == answer_tokens(100, 1)


async def test_a_request_that_has_waited_long_enough_for_a_worker_is_given_up() -> None:
    world = RouterWorld(prefill=(), worker_wait_s=10)
    asked = asyncio.ensure_future(world.answer(body_of(PROMPT)))
    await asyncio.sleep(1)
    world.now_s = 10.0
    with pytest.raises(NoWorkerError, match="no prefill worker came within 10 s"):
        await asked
    assert world.decisions.decisions == []


async def test_when_the_last_worker_is_lost_and_none_comes_there_is_nobody() -> None:
    world = RouterWorld(prefill=(1,), worker_wait_s=0)
    world.prefill.die(1)
    with pytest.raises(NoWorkerError):
        await world.answer(body_of(PROMPT))
    assert workers_of(world) == [1]


# ---- the client goes away ----


async def test_cancelled_while_prefill_runs_the_worker_is_stopped_and_nothing_is_expected_of_it() -> None:
    world = RouterWorld(prefill=(1,))
    world.prefill.script(1, HANGS_AT_ONCE)
    asked = asyncio.ensure_future(world.answer(body_of(PROMPT, annotations=[SPAN])))
    while not world.prefill.calls:
        await asyncio.sleep(0)
    # Until the worker is silent.
    await asyncio.sleep(1)
    outcomes = [world.prefill.calls[0].outcome]
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    outcomes.append(world.prefill.calls[0].outcome)
    assert outcomes == [Outcome.RUNNING, Outcome.STOPPED]
    assert world.state.view.num_segments == 0
    assert known_workers(world.state) == {1}
    assert await is_free(world, 1)


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_helpers_are_stopped_with_the_attempt_that_they_help_and_owe_nothing(is_cancelled: bool) -> None:
    world = RouterWorld()
    world.prefill.script(1, HANGS_AT_ONCE if is_cancelled else refuses("busy"))
    for worker_id in (2, 3):
        world.prefill.script(worker_id, HANGS_AT_ONCE)
    tokens = list(range(4_000))
    marks = spans(*((start, start + 1_000) for start in range(0, 4_000, 1_000)))
    asked = asyncio.ensure_future(world.answer(body_of(tokens, annotations=[marks])))
    while len(world.prefill.calls) < 3:
        await asyncio.sleep(0)
    if is_cancelled:
        asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await asyncio.sleep(1)
    outcomes = {call.worker_id: call.outcome for call in world.prefill.calls}
    assert {outcomes[WorkerId(2)], outcomes[WorkerId(3)]} == {Outcome.STOPPED}
    assert world.state.view.num_claims == 0


async def test_an_unreadable_prefill_reply_is_a_refusal_that_leaves_nothing_behind() -> None:
    world = RouterWorld(prefill=(1,))
    world.prefill.reply = lambda worker_id, request: [{"token_ids": [1]}]
    with pytest.raises(WorkerRefusedError, match="no disaggregated_params"):
        await world.answer(body_of(PROMPT, annotations=[SPAN]))
    world.prefill.reply = prefill_reply
    assert await is_free(world, 1)
