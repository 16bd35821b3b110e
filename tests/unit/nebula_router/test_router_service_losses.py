"""Workers that die cost time, never the answer; a client that goes away frees everything."""

import asyncio
from collections.abc import Mapping

import pytest
from support.placement_case import round_card
from support.router_replies import answer_tokens, limit_of, plan_of, prefill_reply, tokens_of
from support.router_worker_pool import (
    DIES_AFTER_A_CHUNK,
    DIES_AT_ONCE,
    HANGS_AFTER_A_CHUNK,
    HANGS_AT_ONCE,
    Ending,
    Outcome,
    Script,
    refuses,
)
from support.router_world import RouterWorld, body_of, known_workers, spans, state_of, tokens_in

from nebula_protocol.handover import PREFILL_GONE
from nebula_protocol.ids import RequestId, WorkerId
from nebula_router.errors import NoWorkerError, WorkerRefusedError
from nebula_router.metrics import MetricName
from nebula_router.ports import JsonObject

PROMPT = list(range(100))
SPAN = spans((20, 80))
USAGE = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}


def workers_of(world: RouterWorld) -> tuple[list[int], list[int]]:
    """Who was asked to prefill and who to decode, in order."""
    return [call.worker_id for call in world.prefill.calls], [call.worker_id for call in world.decode.calls]


def assert_whole(chunks: list[JsonObject]) -> None:
    """The answer of five tokens to `PROMPT`, each sent once, with one end and one usage."""
    assert tokens_in(chunks) == answer_tokens(100, 5)
    assert [chunk["completion_usage"] for chunk in chunks if "completion_usage" in chunk] == [USAGE]
    assert [chunk["finish_reason"] for chunk in chunks if "finish_reason" in chunk] == ["length"]


async def is_free(world: RouterWorld, worker_id: int) -> bool:
    """Whether nothing is queued at this only prefill worker, and nothing is expected of it."""
    num_claims = world.state.view.num_claims
    await world.answer(body_of(list(range(5_000, 5_100)), max_tokens=1), "probe")
    return num_claims == 0 and plan_of(world.prefill.calls_of(worker_id)[-1].request).estimate.free_in_s == 0


# ---- prefill workers ----


@pytest.mark.parametrize("death", [DIES_AT_ONCE, DIES_AFTER_A_CHUNK])
async def test_when_a_prefill_worker_dies_another_takes_over_and_its_entries_are_gone(death: Script) -> None:
    world = RouterWorld(prefill=(1, 2))
    await world.answer(body_of(PROMPT, max_tokens=5, annotations=[SPAN]), "first")
    assert (workers_of(world)[0], world.state.view.num_segments) == ([1], 1)
    world.prefill.script(1, death)
    with_hit = body_of([*range(500, 510), *PROMPT[20:80]], max_tokens=1, annotations=[spans((10, 70))])
    chunks = await world.answer(with_hit, "second")
    assert workers_of(world)[0] == [1, 1, 2]
    # Of 70 prompt tokens.
    assert tokens_in(chunks) == answer_tokens(70, 1)
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
    assert_whole(await world.answer(body_of(PROMPT, max_tokens=5)))
    assert workers_of(world)[0] == [1, 2]


async def test_every_attempt_is_published_with_its_number() -> None:
    world = RouterWorld()
    world.prefill.script(1, DIES_AT_ONCE)
    world.prefill.script(2, DIES_AT_ONCE)
    await world.answer(body_of(PROMPT))
    assert [(one.attempt, one.plan.target.worker_id) for one in world.decisions.decisions] == [(1, 1), (2, 2), (3, 3)]


async def test_a_prompt_whose_kv_is_gone_before_decode_pulled_it_is_prefilled_elsewhere() -> None:
    world = RouterWorld(prefill=(1, 2), decode=(91,))
    # As Dynamo hands on what a decode worker raises.
    world.decode.script(91, refuses(f"BackendUnknown: RuntimeError: {PREFILL_GONE}: worker 1 does not answer"))
    assert_whole(await world.answer(body_of(PROMPT, max_tokens=5)))
    assert workers_of(world) == ([1, 2], [91, 91])
    again = world.prefill.calls[1].request
    assert (tokens_of(again), limit_of(again)) == ([*PROMPT, *answer_tokens(100, 1)], 1)
    last = world.decode.calls[1].request
    assert (tokens_of(last), limit_of(last)) == ([*PROMPT, *answer_tokens(100, 2)], 3)
    # The one that lost the KV is lost, the decode worker that said so is not.
    assert known_workers(world.state) == {2}
    await world.answer(body_of(PROMPT), "next")
    assert workers_of(world)[1] == [91, 91, 91]


async def test_a_second_prefill_that_makes_the_last_token_needs_no_decode_worker() -> None:
    world = RouterWorld(prefill=(1, 2), decode=(91,))
    world.decode.script(91, refuses(PREFILL_GONE))
    chunks = await world.answer(body_of(PROMPT, max_tokens=2))
    assert tokens_in(chunks) == answer_tokens(100, 2)
    assert workers_of(world) == ([1, 2], [91])
    assert [plan_of(call.request).hands_over for call in world.prefill.calls] == [True, False]


async def test_a_worker_that_came_back_is_not_used_again_for_the_request_that_it_broke() -> None:
    world = RouterWorld(prefill=(1, 2))
    world.prefill.script(1, DIES_AT_ONCE)
    world.decode.script(91, DIES_AT_ONCE)

    def reply_and_bring_back(worker_id: WorkerId, request: Mapping[str, object]) -> list[JsonObject]:
        world.state.apply_state(state_of(round_card(1)), world.now_s)
        return prefill_reply(worker_id, request)

    world.prefill.reply = reply_and_bring_back
    assert_whole(await world.answer(body_of(PROMPT, max_tokens=5)))
    # Worker 1 is back and idle at the third attempt, when the decode worker has died.
    assert workers_of(world) == ([1, 2, 2], [91, 92])
    assert known_workers(world.state) == {1, 2}


# ---- decode workers ----


@pytest.mark.parametrize("num_chunks", [0, 1, 3])
async def test_when_a_decode_worker_dies_the_answer_goes_on_behind_what_was_sent(num_chunks: int) -> None:
    world = RouterWorld()
    world.decode.script(91, Script(Ending.GONE, num_chunks))
    assert_whole(await world.answer(body_of(PROMPT, max_tokens=5)))
    assert len(world.prefill.calls) == 2
    # 1 of prefill and those of decode are there already.
    assert tokens_of(world.prefill.calls[1].request) == [*PROMPT, *answer_tokens(100, 1 + num_chunks)]
    # Two tokens from prefill in all; with three of decode nothing is left for a second decode worker.
    assert workers_of(world)[1] == ([91, 92] if num_chunks < 3 else [91])


async def test_a_decode_stream_that_ends_without_a_reason_is_a_death() -> None:
    world = RouterWorld()
    world.decode.script(91, Script(Ending.WHOLE, 2))
    assert_whole(await world.answer(body_of(PROMPT, max_tokens=5)))
    assert workers_of(world)[1] == [91, 92]


@pytest.mark.parametrize("ending", [Ending.GONE, Ending.WHOLE])
async def test_a_death_behind_the_last_token_changes_nothing(ending: Ending) -> None:
    world = RouterWorld()
    world.decode.script(91, Script(ending, None))
    assert_whole(await world.answer(body_of(PROMPT, max_tokens=5)))
    assert len(world.prefill.calls) == 1
    assert world.metric(MetricName.RETRIES) == 0


async def test_what_a_decode_worker_sends_behind_the_end_is_not_passed_on() -> None:
    world = RouterWorld(decode=(91,))
    whole = world.decode.reply
    world.decode.reply = lambda worker_id, request: [*whole(worker_id, request), {"token_ids": [1]}]
    assert_whole(await world.answer(body_of(PROMPT, max_tokens=5)))


async def test_a_dead_decode_worker_is_avoided_while_discovery_still_lists_it() -> None:
    world = RouterWorld(decode=(91, 92))
    world.decode.die(91)
    for number in range(3):
        await world.answer(body_of(PROMPT), f"r{number}")
    assert workers_of(world)[1] == [91, 92, 92, 92]
    # 15 s are over.
    world.now_s = 16.0
    await world.answer(body_of(PROMPT), "later")
    assert workers_of(world)[1][4:] == [91, 92]


# ---- nobody left ----


async def test_attempts_are_bounded() -> None:
    world = RouterWorld(max_attempts=2)
    for worker_id in (1, 2, 3):
        world.prefill.die(worker_id)
    with pytest.raises(NoWorkerError, match="2 attempts ended with a lost worker"):
        await world.answer(body_of(PROMPT))
    assert len(world.prefill.calls) == 2
    # Placed once, and once anew.
    assert world.metric(MetricName.RETRIES) == 1


async def test_when_the_last_prefill_worker_is_lost_there_is_nobody() -> None:
    world = RouterWorld(prefill=(1,))
    world.prefill.die(1)
    with pytest.raises(NoWorkerError):
        await world.answer(body_of(PROMPT))
    with pytest.raises(NoWorkerError, match="no prefill worker is known"):
        await world.answer(body_of(PROMPT))


async def test_without_a_decode_worker_nothing_is_placed() -> None:
    world = RouterWorld(prefill=(1,), decode=())
    with pytest.raises(NoWorkerError, match="no decode worker is alive"):
        await world.answer(body_of(PROMPT))
    assert world.decisions.decisions == []
    assert await is_free(world, 1)


async def test_when_the_last_decode_worker_dies_the_answer_breaks_off() -> None:
    world = RouterWorld(decode=(91,))
    world.decode.script(91, DIES_AFTER_A_CHUNK)
    answer = world.service.handle(body_of(PROMPT, max_tokens=5), RequestId("r"))
    assert tokens_in([await anext(answer), await anext(answer)]) == answer_tokens(100, 2)
    with pytest.raises(NoWorkerError, match="no decode worker is alive"):
        await anext(answer)


# ---- the client goes away ----


async def cancelled(world: RouterWorld, pool_name: str) -> None:
    """Cancels an answer while the pool's worker is silent."""
    asked = asyncio.ensure_future(world.answer(body_of(PROMPT, max_tokens=5, annotations=[SPAN])))
    pool = world.prefill if pool_name == "prefill" else world.decode
    while not pool.calls:
        await asyncio.sleep(0)
    # Until it waits for the worker.
    for _ in range(5):
        await asyncio.sleep(0)
    assert pool.calls[0].outcome is Outcome.RUNNING
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_cancelled_while_prefill_runs_the_worker_is_stopped_and_nothing_is_expected_of_it() -> None:
    world = RouterWorld(prefill=(1,))
    world.prefill.script(1, HANGS_AT_ONCE)
    await cancelled(world, "prefill")
    assert world.prefill.calls[0].outcome is Outcome.STOPPED
    assert world.state.view.num_segments == 0
    assert known_workers(world.state) == {1}
    assert await is_free(world, 1)


async def test_cancelled_while_decode_runs_the_worker_is_stopped_and_free() -> None:
    world = RouterWorld(prefill=(1,))
    world.decode.script(91, HANGS_AFTER_A_CHUNK)
    await cancelled(world, "decode")
    assert world.decode.calls[0].outcome is Outcome.STOPPED
    await world.answer(body_of(PROMPT), "next")
    # Equally loaded again, so the lower id.
    assert workers_of(world)[1] == [91, 91]


async def test_closed_after_the_first_token_nothing_is_decoded() -> None:
    world = RouterWorld()
    answer = world.service.handle(body_of(PROMPT, max_tokens=5), RequestId("r"))
    await anext(answer)
    await answer.aclose()
    await world.answer(body_of(PROMPT), "next")
    assert workers_of(world)[1] == [91]


async def test_closed_while_decode_goes_on_the_worker_is_stopped_at_once() -> None:
    world = RouterWorld()
    answer = world.service.handle(body_of(PROMPT, max_tokens=5), RequestId("r"))
    await anext(answer)
    await anext(answer)
    await answer.aclose()
    assert world.decode.calls[0].outcome is Outcome.STOPPED


async def test_helpers_go_on_when_the_client_goes_away() -> None:
    """What they compute is kept, and others may have counted on it."""
    world = RouterWorld()
    world.prefill.script(1, HANGS_AT_ONCE)
    tokens = list(range(4_000))
    marks = spans(*((start, start + 1_000) for start in range(0, 4_000, 1_000)))
    asked = asyncio.ensure_future(world.answer(body_of(tokens, annotations=[marks])))
    while len(world.prefill.calls) < 3:
        await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    for _ in range(10):
        await asyncio.sleep(0)
    outcomes = {call.worker_id: call.outcome for call in world.prefill.calls}
    assert outcomes == {1: Outcome.STOPPED, 2: Outcome.DONE, 3: Outcome.DONE}


async def test_an_unreadable_prefill_reply_is_a_refusal_that_leaves_nothing_behind() -> None:
    world = RouterWorld(prefill=(1,))
    world.prefill.reply = lambda worker_id, request: [{"token_ids": [1]}]
    with pytest.raises(WorkerRefusedError, match="no disaggregated_params"):
        await world.answer(body_of(PROMPT, annotations=[SPAN]))
    world.prefill.reply = prefill_reply
    assert await is_free(world, 1)
