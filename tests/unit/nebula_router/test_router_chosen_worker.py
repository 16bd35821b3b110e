"""Requests whose client chose the prefill worker."""

from collections.abc import Mapping
from itertools import pairwise

import pytest
from support.placement_case import NOW_S, PlacementCase, layout_of, round_card, worker
from support.router_replies import answer_tokens, plan_of, receipt_for
from support.router_worker_pool import DIES_AT_ONCE
from support.router_world import RouterWorld, body_of, decide, new_state, spans

from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.plan import Source
from nebula_router.core.coverage import STORED
from nebula_router.core.planner import plan_prefill
from nebula_router.errors import BadRequestError
from nebula_router.ports import JsonObject
from nebula_router.request import RoutedRequest

PROMPT = list(range(100))
LONG = list(range(4_000))
LONG_SPANS = spans(*pairwise(range(0, 4_001, 1_000)))


def sent_to(worker_id: int, token_ids: list[int], *annotations: str) -> JsonObject:
    """As the frontend passes on `nvext.backend_instance_id`."""
    return body_of(token_ids, annotations=annotations) | {"routing": {"backend_instance_id": worker_id}}


# ---- what is read of the request ----


@pytest.mark.parametrize(
    ("routing", "worker_id"),
    [
        ({"backend_instance_id": 2**64 - 1}, 2**64 - 1),
        ({"prefill_worker_id": 7, "decode_worker_id": 8}, 7),
        ({"backend_instance_id": 9, "prefill_worker_id": 7}, 7),
        ({"backend_instance_id": 9, "prefill_worker_id": None}, 9),
        ({"decode_worker_id": 8}, None),
        ({}, None),
        (None, None),
    ],
)
def test_the_chosen_worker_is_the_one_for_prefill_else_the_one_for_everything(
    routing: Mapping[str, object] | None, worker_id: int | None
) -> None:
    request = RoutedRequest.read(body_of(PROMPT) | {"routing": routing}, RequestId("r"), 1_000)
    assert request.worker_id == worker_id


# ---- the planner ----


def test_the_only_target_is_taken_though_others_are_better_and_they_still_give_what_they_have() -> None:
    # Worker 1 has the passage of 3,000 tokens and is idle: 10 ms and 1,000 tokens, 110 ms. Worker 2 is busy for 500 ms.
    case = PlacementCase(
        cards=[round_card(1), round_card(2)],
        layout=layout_of(4_000, [(0, 3_000)]),
        states={(0, 1): STORED},
        load={"free_in_s": {2: 0.5}},
    )
    free = plan_prefill(case.question(), NOW_S)
    case.only_target = 2
    bound = plan_prefill(case.question(), NOW_S)
    assert free is not None
    assert bound is not None
    assert (free.plan.target, bound.plan.target) == (worker(1), worker(2))
    (segment,) = bound.plan.segments
    assert (segment.source, segment.from_worker) == (Source.FETCH, worker(1))
    assert [candidate.worker for candidate in bound.candidates] == [worker(2)]


def test_an_only_target_that_is_too_small_leaves_no_plan() -> None:
    case = PlacementCase(
        cards=[round_card(1, context_tokens=1_000), round_card(2)], layout=layout_of(4_000, []), only_target=1
    )
    assert plan_prefill(case.question(), NOW_S) is None


# ---- the decision ----


def test_a_worker_that_nobody_knows_is_the_clients_mistake() -> None:
    with pytest.raises(BadRequestError, match=r"there is no prefill worker 3$"):
        decide(new_state(round_card(1), round_card(2)), sent_to(3, PROMPT))


def test_a_worker_that_left_is_the_clients_mistake() -> None:
    state = new_state(round_card(1), round_card(2))
    state.remove_worker(WorkerId(2))
    with pytest.raises(BadRequestError, match=r"there is no prefill worker 2$"):
        decide(state, sent_to(2, PROMPT))


def test_a_worker_whose_context_is_too_small_is_the_clients_mistake() -> None:
    state = new_state(round_card(1, context_tokens=64), round_card(2))
    with pytest.raises(BadRequestError, match="prefill worker 1 cannot take this prompt"):
        decide(state, sent_to(1, PROMPT))


def test_what_the_chosen_worker_lacks_comes_from_the_one_that_has_it() -> None:
    state = new_state(round_card(1), round_card(2), parallel_prefill=False)
    first = decide(state, sent_to(1, LONG, LONG_SPANS), "first")
    state.record_receipt(first, receipt_for(first.plan, len(LONG)), 0.0)
    # The same passages, the first two in the other order: no prefix is the same.
    turned = [*LONG[1_000:2_000], *LONG[:1_000], *LONG[2_000:]]
    second = decide(state, sent_to(2, turned, LONG_SPANS), "second")
    assert (first.plan.target, second.plan.target) == (worker(1), worker(2))
    # Its own beginning is kept as a prefix, not as a segment; the rest lies at worker 1.
    assert [segment.source for segment in second.plan.segments].count(Source.FETCH) == 3
    assert {segment.from_worker for segment in second.plan.segments} == {worker(1), None}


# ---- the request path ----


@pytest.mark.parametrize("worker_id", [1, 2, 3])
async def test_a_request_goes_to_the_worker_that_its_client_chose(worker_id: int) -> None:
    world = RouterWorld()
    await world.answer(sent_to(worker_id, PROMPT))
    (call,) = world.prefill.calls
    assert call.worker_id == plan_of(call.request).target.worker_id == worker_id


async def test_a_request_for_an_unknown_worker_is_refused_before_anything_is_sent() -> None:
    world = RouterWorld()
    with pytest.raises(BadRequestError, match="there is no prefill worker 92"):
        await world.answer(sent_to(92, PROMPT))
    assert not world.prefill.calls


async def test_after_the_chosen_worker_died_any_other_one_serves() -> None:
    world = RouterWorld()
    world.prefill.script(2, DIES_AT_ONCE)
    chunk = await world.answer(sent_to(2, PROMPT))
    assert chunk["token_ids"] == answer_tokens(100, 1)
    first, second = world.prefill.calls
    assert first.worker_id == 2
    assert second.worker_id in (1, 3)
