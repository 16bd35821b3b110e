"""The request path while nothing breaks: prefill, helpers, and what the router learns."""

import asyncio
from collections.abc import Mapping

import numpy as np
import pytest
from support.placement_case import round_card
from support.router_replies import (
    EPOCH,
    answer_tokens,
    helper_task_of,
    is_helper_request,
    limit_of,
    plan_of,
    prefill_reply,
    tokens_of,
)
from support.router_worker_pool import DIES_AT_ONCE, HANGS_AT_ONCE, Outcome, Script, refuses
from support.router_world import RouterWorld, body_of, decide, known_workers, spans, state_of

from nebula_protocol.codec import encode
from nebula_protocol.events import PicEvent, SegmentStored, WorkerPicEvents
from nebula_protocol.hashing import hash_segment
from nebula_protocol.ids import EventId, Origin, WorkerId, WorkerWithDpRank
from nebula_protocol.plan import Source
from nebula_router.errors import WorkerRefusedError
from nebula_router.metrics import HitKind, MetricName
from nebula_router.ports import JsonObject

PROMPT = list(range(100))
SPAN = spans((20, 80))
"""Of this prompt; what is left on both sides is too short for segments."""
LONG_PROMPT = list(range(1, 4_001))
"""Computed in 410 ms by one worker (10 ms and 0.1 ms a token), so that helpers pay."""
LONG_SPANS = spans(*((start, start + 1_000) for start in range(0, 4_000, 1_000)))


async def test_the_worker_gets_the_clients_request_with_a_plan_and_a_limit_of_one_token() -> None:
    world = RouterWorld()
    await world.answer(body_of(PROMPT, max_tokens=5))
    (call,) = world.prefill.calls
    assert (tokens_of(call.request), limit_of(call.request)) == (PROMPT, 1)
    assert plan_of(call.request).target.worker_id == call.worker_id
    assert call.request["sampling_options"] == {"temperature": 0.5}
    assert call.outcome is Outcome.DONE


async def test_the_workers_reply_is_handed_on_as_it_came() -> None:
    world = RouterWorld()
    sent: list[JsonObject] = []

    def reply_with_more(worker_id: WorkerId, request: Mapping[str, object]) -> list[JsonObject]:
        (chunk,) = prefill_reply(worker_id, request)
        sent.append(chunk | {"engine_data": {"a": 1}, "log_probs": [-0.5]})
        return sent[-1:]

    world.prefill.reply = reply_with_more
    assert await world.answer(body_of(PROMPT, max_tokens=5)) == sent[0]


async def test_where_a_request_comes_from_is_told_to_its_worker_and_with_a_suffix_to_its_helpers() -> None:
    world, origin = RouterWorld(), object()
    await world.answer(body_of(LONG_PROMPT, annotations=[LONG_SPANS]), origin=origin)
    suffixes = {call.worker_id: call.id_suffix for call in world.prefill.calls}
    assert suffixes == {1: "", 2: "~helper-1", 3: "~helper-1"}
    assert all(call.origin is origin for call in world.prefill.calls)


async def test_the_receipt_reaches_the_metrics_and_the_view() -> None:
    world = RouterWorld(prefill=(1,))
    world.prefill.reply = lambda worker_id, request: prefill_reply(worker_id, request, invalid_hit_tokens=7)
    await world.answer(body_of(PROMPT, annotations=[SPAN]), "first")
    assert world.metric(MetricName.INVALID_HIT_TOKENS) == 7
    assert world.metric(MetricName.PROMPT_TOKENS) == world.metric(MetricName.COMPUTED_TOKENS) == 100
    assert world.metric(MetricName.SEGMENTS, source="compute") == 1
    assert world.metric(MetricName.TTFT_OBSERVED_SECONDS) == 1
    await world.answer(body_of([*range(500, 510), *PROMPT[20:80]], annotations=[spans((10, 70))]), "second")
    assert [segment.source for segment in plan_of(world.prefill.calls[1].request).segments] == [Source.LOCAL]
    assert world.metric(MetricName.HIT_TOKENS, kind=HitKind.LOCAL) == 60


async def test_a_copy_that_the_router_did_not_know_of_counts_as_repeated_computation() -> None:
    world = RouterWorld(prefill=(1, 2))

    def reply_after_the_other_told(worker_id: WorkerId, request: Mapping[str, object]) -> list[JsonObject]:
        (segment,) = plan_of(request).segments
        stored = SegmentStored(
            segment_hash=segment.segment_hash,
            domain_id=plan_of(request).domain_id,
            num_tokens=60,
            origin=Origin.ALONE,
        )
        events = (PicEvent(event_id=EventId(0), data=stored),)
        other = WorkerPicEvents(worker_id=WorkerId(3 - worker_id), epoch=EPOCH, events=events)
        world.state.view.apply_pic_events(other, world.now_s)
        return prefill_reply(worker_id, request)

    world.prefill.reply = reply_after_the_other_told
    await world.answer(body_of(PROMPT, annotations=[SPAN]))
    assert world.metric(MetricName.REPEATED_TOKENS) == 60


async def test_a_decision_is_published_and_holds_no_token_ids() -> None:
    world = RouterWorld()
    tokens = [123_456_789 + index for index in range(100)]
    await world.answer(body_of(tokens, annotations=[spans((10, 60))]))
    (decision,) = world.decisions.decisions
    assert (decision.request_id, decision.prompt_tokens, decision.attempt) == ("r", 100, 1)
    assert decision.plan == plan_of(world.prefill.calls[0].request)
    wire = encode(decision)
    # MessagePack writes such numbers as 0xce and 4 bytes.
    assert not [token for token in tokens if token.to_bytes(4, "big") in wire or str(token).encode() in wire]


async def test_nothing_is_published_without_a_sink() -> None:
    world = RouterWorld(has_sink=False)
    assert (await world.answer(body_of(PROMPT)))["token_ids"] == answer_tokens(100, 1)
    assert world.decisions.decisions == []


async def test_two_requests_of_one_name_at_once_go_by_different_names_inside() -> None:
    world = RouterWorld()
    both = await asyncio.gather(world.answer(body_of(PROMPT), "same"), world.answer(body_of(PROMPT[:50]), "same"))
    assert [chunk["token_ids"] for chunk in both] == [answer_tokens(100, 1), answer_tokens(50, 1)]
    names = [plan_of(call.request).request_id for call in world.prefill.calls]
    assert names == ["same", "same~2"]
    await world.answer(body_of(PROMPT), "same")
    assert plan_of(world.prefill.calls[-1].request).request_id == "same"


async def test_a_refusal_of_the_prefill_worker_ends_the_request_with_its_reason() -> None:
    world = RouterWorld(prefill=(1,))
    world.prefill.script(1, refuses("the plan is of another version"))
    with pytest.raises(WorkerRefusedError, match="the plan is of another version"):
        await world.answer(body_of(PROMPT))
    assert world.state.view.num_claims == 0
    await world.answer(body_of(PROMPT), "next")
    # Nothing queues in front of it any more.
    assert plan_of(world.prefill.calls[1].request).estimate.free_in_s == 0


async def test_helpers_get_the_tokens_of_their_segments_one_behind_another() -> None:
    world = RouterWorld()
    await world.answer(body_of(LONG_PROMPT, annotations=[LONG_SPANS]))
    await asyncio.sleep(1)
    helped = [call for call in world.prefill.calls if is_helper_request(call.request)]
    (prefill,) = [call for call in world.prefill.calls if not is_helper_request(call.request)]
    wanted: dict[int, list[int]] = {}
    for segment in plan_of(prefill.request).segments:
        if segment.source is Source.COMPUTE_AT and segment.from_worker is not None:
            tokens = wanted.setdefault(segment.from_worker.worker_id, [])
            tokens += LONG_PROMPT[segment.start : segment.end]
    assert wanted
    assert {call.worker_id: sorted(tokens_of(call.request)) for call in helped} == wanted
    assert {(limit_of(call.request), call.outcome) for call in helped} == {(1, Outcome.DONE)}
    # And are free again.
    free_in_s = [decide(world.state, body_of(PROMPT), f"probe {n}").plan.estimate.free_in_s for n in range(3)]
    assert free_in_s == [0, 0, 0]
    for call in helped:
        task = helper_task_of(call.request)
        assert task.for_request == "r"
        sent = np.array(tokens_of(call.request), dtype=np.uint32)
        assert [key for key, _ in task.segments] == [
            hash_segment(sent[start : start + 1_000]) for start in range(0, len(sent), 1_000)
        ]


@pytest.mark.parametrize("trouble", [refuses("busy"), DIES_AT_ONCE])
async def test_nobody_notices_a_helper_that_fails_and_what_it_owed_is_forgotten(trouble: Script) -> None:
    world = RouterWorld()
    world.prefill.script(2, trouble)
    chunk = await world.answer(body_of(LONG_PROMPT, annotations=[LONG_SPANS]))
    assert chunk["token_ids"] == answer_tokens(4_000, 1)
    assert [call.outcome for call in world.prefill.calls_of(2)] == [Outcome.FAILED]
    held = {worker_id: held_elsewhere(world, worker_id) for worker_id in (2, 3)}
    assert held == {2: {False}, 3: {True}}


def held_elsewhere(world: RouterWorld, helper_id: int) -> set[bool]:
    """Whether anybody but the target has what the helper was asked for."""
    (call,) = world.prefill.calls_of(helper_id)
    task = helper_task_of(call.request)
    view, target = world.state.view, WorkerWithDpRank(WorkerId(1))
    return {view.is_held_elsewhere(task.domain_id, segment_hash, target) for segment_hash, _ in task.segments}


async def test_a_helper_that_dies_is_lost_and_one_that_refuses_is_not() -> None:
    world = RouterWorld(prefill=(1, 2, 3))
    world.prefill.script(2, DIES_AT_ONCE)
    world.prefill.script(3, refuses("busy"))
    await world.answer(body_of(LONG_PROMPT, annotations=[LONG_SPANS]))
    assert known_workers(world.state) == {1, 3}
    assert world.metric(MetricName.RETRIES) == 0


async def test_a_new_worker_is_used() -> None:
    world = RouterWorld(prefill=(1,))
    world.prefill.script(1, HANGS_AT_ONCE)
    asked = asyncio.ensure_future(world.answer(body_of(LONG_PROMPT), "long"))
    while not world.prefill.calls:
        await asyncio.sleep(0)
    world.prefill.join(2)
    world.state.apply_state(state_of(round_card(2)), world.now_s)
    await world.answer(body_of(PROMPT), "short")
    assert world.prefill.calls[1].worker_id == 2
    asked.cancel()
