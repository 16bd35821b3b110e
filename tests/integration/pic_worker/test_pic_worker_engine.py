"""Workers as Dynamo drives them: real engines of both roles on a real NATS server, without Dynamo's runtime."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast
from uuid import uuid4

import pytest
from dynamo.common.backend.health_check import HEALTH_CHECK_KEY
from dynamo.llm.exceptions import Cancelled, InvalidArgument
from dynamo.runtime import Context
from support.engine_world import join, passage

from nebula_protocol.codec import from_plain, to_plain
from nebula_protocol.handover import HANDOVER_KEY, Handover
from nebula_protocol.hashing import hash_segment
from nebula_protocol.ids import RequestId, WorkerId, WorkerWithDpRank
from nebula_protocol.plan import HELPER_TASK_KEY, PLAN_KEY, Estimate, HelperTask, Plan, SegmentPlan, Source
from nebula_protocol.receipt import RECEIPT_KEY, Receipt
from nebula_serve.sim_model.model_folder import packaged_folder
from pic_worker.adapters.dynamo.engine import PicEngine
from pic_worker.adapters.sim.costs import make_costs
from pic_worker.adapters.sim.engine_setup import make_card
from pic_worker.settings import SimSettings, WorkerSettings

pytestmark = pytest.mark.integration

HOME, HELPER, DECODER = WorkerId(1), WorkerId(2), WorkerId(3)
SEGMENT = passage(1, 1000)
TOKENS = join(passage(2, 20), SEGMENT, passage(3, 30))
Chunk = dict[str, Any]


class FakeContext:
    """A request's life as Dynamo tells of it."""

    def __init__(self, request_id: str = "r") -> None:
        self._request_id = request_id
        self.stopped = asyncio.Event()

    def id(self) -> str:
        return self._request_id

    def is_stopped(self) -> bool:
        return self.stopped.is_set()

    async def async_killed_or_stopped(self) -> bool:
        return await self.stopped.wait()


class Workers:
    """Started engines of one deployment."""

    def __init__(self) -> None:
        self._namespace = uuid4().hex
        self._engines: dict[WorkerId, PicEngine] = {}

    def settings(self, role: str, **changes: object) -> WorkerSettings:
        """At a hundredth of the real times."""
        return WorkerSettings.model_validate(
            {
                "role": role,
                "namespace": self._namespace,
                "model_path": str(packaged_folder()),
                "cut": {"content_chunks": False},
                "sim": SimSettings(time_scale=0.01),
                **changes,
            }
        )

    async def start(self, worker_id: WorkerId, role: str = "prefill", **changes: object) -> None:
        self._engines[worker_id] = PicEngine(self.settings(role, **changes))
        await self._engines[worker_id].start(worker_id)

    async def stop(self, worker_id: WorkerId) -> None:
        await self._engines.pop(worker_id).cleanup()

    async def close(self) -> None:
        for worker_id in list(self._engines):
            await self.stop(worker_id)

    async def stream(
        self, worker_id: WorkerId, request: Mapping[str, object], context: FakeContext
    ) -> AsyncIterator[Chunk]:
        stream = self._engines[worker_id].generate(cast("Any", dict(request)), cast("Context", context))
        async for chunk in stream:
            yield cast("Chunk", chunk)

    async def chunks(
        self, worker_id: WorkerId, request: Mapping[str, object], context: FakeContext | None = None
    ) -> list[Chunk]:
        return [chunk async for chunk in self.stream(worker_id, request, context or FakeContext())]

    async def tokens(self, worker_id: WorkerId, request: Mapping[str, object]) -> list[int]:
        return [token for chunk in await self.chunks(worker_id, request) for token in chunk["token_ids"]]

    async def is_quiescent(self, worker_id: WorkerId) -> bool:
        return await self._engines[worker_id].is_quiescent()

    async def prefill(self, worker_id: WorkerId, **fields: object) -> Handover:
        (chunk,) = await self.chunks(worker_id, prompt(**fields))
        return from_plain(chunk["disaggregated_params"][HANDOVER_KEY], Handover)

    def plan(self, source: Source, from_worker: WorkerId) -> Plan:
        settings = self.settings("prefill")
        card = make_card(settings, make_costs(settings), HOME, cast("Any", 1))
        segment = SegmentPlan(
            start=20,
            end=1020,
            segment_hash=hash_segment(SEGMENT),
            source=source,
            from_worker=WorkerWithDpRank(from_worker),
        )
        return Plan(
            request_id=RequestId("planned"),
            domain_id=card.domain.domain_id,
            target=WorkerWithDpRank(HOME),
            segments=(segment,),
            prefix_hit_tokens=0,
            wait_budget_s=5.0,
            estimate=Estimate(free_in_s=0.0, arrive_in_s=0.0, compute_s=0.0, completion_s=0.0),
        )


def prompt(**fields: object) -> dict[str, object]:
    return {"token_ids": TOKENS.tolist(), **fields}


def after_prefill(handover: Handover, **fields: object) -> dict[str, object]:
    return prompt(prefill_result={"disaggregated_params": {HANDOVER_KEY: to_plain(handover)}}, **fields)


@pytest.fixture
async def workers(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Workers]:
    monkeypatch.setenv("NATS_SERVER", nats_url)
    workers = Workers()
    await workers.start(HOME)
    yield workers
    await workers.close()


async def test_a_prompt_goes_from_prefill_to_decode_and_is_answered(workers: Workers) -> None:
    await workers.start(DECODER, "decode")
    handover = await workers.prefill(HOME, annotations=["nebula.spans=[[20,1020]]"])
    assert (handover.request_id, handover.prefill_worker_id, handover.prompt_tokens) == ("r", HOME, 1050)
    chunks = await workers.chunks(DECODER, after_prefill(handover, stop_conditions={"max_tokens": 5}))
    assert [len(chunk["token_ids"]) for chunk in chunks] == [1] * 5
    assert [chunk.get("finish_reason") for chunk in chunks] == [None] * 4 + ["length"]
    assert chunks[-1]["completion_usage"]["total_tokens"] == 1055
    assert handover.first is not None
    assert chunks[0]["token_ids"] == list(handover.first.token_ids)
    data = chunks[0]["engine_data"]
    assert from_plain(data[RECEIPT_KEY], Receipt) == handover.receipt
    assert data["worker_id"] == {"prefill_worker_id": HOME, "decode_worker_id": DECODER}


async def test_a_planned_segment_is_computed_by_a_helper_and_fetched_over_nats(workers: Workers) -> None:
    await workers.start(HELPER)
    plan = workers.plan(Source.COMPUTE_AT, HELPER)
    task = HelperTask(
        for_request=plan.request_id, domain_id=plan.domain_id, segments=((hash_segment(SEGMENT), len(SEGMENT)),)
    )
    helping = workers.chunks(HELPER, {"token_ids": SEGMENT.tolist(), "extra_args": {HELPER_TASK_KEY: to_plain(task)}})
    handover, (helped,) = await asyncio.gather(workers.prefill(HOME, extra_args={PLAN_KEY: to_plain(plan)}), helping)
    assert (helped["token_ids"], helped["finish_reason"]) == ([], "stop")
    assert handover.request_id == "planned"
    assert [outcome.done for outcome in handover.receipt.segments] == [Source.COMPUTE_AT]
    assert (handover.receipt.fetched_hit_tokens, handover.receipt.computed_tokens) == (1000, 50)


async def test_a_source_that_has_stopped_costs_only_time(workers: Workers) -> None:
    await workers.start(HELPER)
    await workers.stop(HELPER)
    plan = workers.plan(Source.FETCH, HELPER)
    receipt = (await workers.prefill(HOME, extra_args={PLAN_KEY: to_plain(plan)})).receipt
    assert [outcome.done for outcome in receipt.segments] == [Source.COMPUTE]
    assert receipt.computed_tokens == 1050


async def test_a_prompt_that_is_gone_is_computed_by_the_decode_worker_with_the_same_answer(workers: Workers) -> None:
    await workers.start(DECODER, "decode")
    handover = await workers.prefill(HOME)
    limits = {"max_tokens": 5}
    whole = await workers.tokens(DECODER, after_prefill(handover, stop_conditions=limits))
    handover = await workers.prefill(HOME)
    await workers.stop(HOME)
    assert await workers.tokens(DECODER, after_prefill(handover, stop_conditions=limits)) == whole
    assert len(whole) == 5


async def test_an_answer_goes_on_where_it_was_broken_off_on_other_workers(workers: Workers) -> None:
    await workers.start(DECODER, "decode")
    limits = {"max_tokens": 9}
    whole = await workers.tokens(DECODER, after_prefill(await workers.prefill(HOME), stop_conditions=limits))
    # So Dynamo's migration asks: the tokens that were said are part of the prompt.
    moved = {"token_ids": [*TOKENS.tolist(), *whole[:4]], "stop_conditions": {"max_tokens": 5}}
    handover = await workers.prefill(HOME, **moved)
    assert whole[:4] + await workers.tokens(DECODER, after_prefill(handover, **moved)) == whole


async def test_an_answer_of_one_token_leaves_the_prefill_worker_nothing_to_hold(workers: Workers) -> None:
    await workers.start(DECODER, "decode")
    handover = await workers.prefill(HOME)
    assert not await workers.is_quiescent(HOME)
    (only,) = await workers.chunks(DECODER, after_prefill(handover, stop_conditions={"max_tokens": 1}))
    assert only["finish_reason"] == "length"
    async with asyncio.timeout(10):
        while not await workers.is_quiescent(HOME):
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "fields",
    [{"token_ids": []}, {"annotations": ["nebula.pic=maybe"]}, {"annotations": ["nebula.spans=[[0,9999]]"]}],
    ids=repr,
)
async def test_malformed_requests_are_invalid_arguments(workers: Workers, fields: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        await workers.chunks(HOME, prompt(**fields))
    assert (await workers.prefill(HOME)).prompt_tokens == 1050


async def test_a_decode_request_without_a_handover_is_computed_and_answered(workers: Workers) -> None:
    await workers.start(DECODER, "decode")
    limits = {"max_tokens": 5}
    alone = await workers.chunks(DECODER, prompt(stop_conditions=limits))
    assert "engine_data" not in alone[0]
    assert alone[-1]["completion_usage"]["total_tokens"] == 1055
    served = await workers.tokens(DECODER, after_prefill(await workers.prefill(HOME), stop_conditions=limits))
    assert [token for chunk in alone for token in chunk["token_ids"]] == served


async def test_a_malformed_handover_is_an_invalid_argument(workers: Workers) -> None:
    await workers.start(DECODER, "decode")
    with pytest.raises(InvalidArgument):
        await workers.chunks(DECODER, prompt(prefill_result={"disaggregated_params": {HANDOVER_KEY: {}}}))


async def test_a_client_that_leaves_ends_its_prefill(workers: Workers) -> None:
    context = FakeContext()
    working = asyncio.create_task(workers.chunks(HOME, prompt(), context))
    await asyncio.sleep(0)
    context.stopped.set()
    with pytest.raises(Cancelled):
        await working
    # The same id is free again.
    assert (await workers.prefill(HOME)).request_id == "r"


async def test_a_client_that_leaves_gets_no_more_tokens(workers: Workers) -> None:
    await workers.start(DECODER, "decode")
    handover = await workers.prefill(HOME)
    context = FakeContext()
    stream = workers.stream(DECODER, after_prefill(handover, stop_conditions={"max_tokens": 1_000_000}), context)
    await anext(stream)
    context.stopped.set()
    assert [chunk async for chunk in stream] == []


async def test_a_probe_is_answered_by_either_role(workers: Workers) -> None:
    await workers.start(DECODER, "decode")
    for worker_id in (HOME, DECODER):
        (chunk,) = await workers.chunks(worker_id, {"token_ids": [1], HEALTH_CHECK_KEY: True})
        assert chunk["finish_reason"] == "length"


async def test_a_worker_that_is_stopped_finishes_the_answers_that_it_has_begun(workers: Workers) -> None:
    await workers.start(DECODER, "decode")
    answer = workers.stream(DECODER, prompt(stop_conditions={"max_tokens": 50}), FakeContext())
    chunks = [await anext(answer)]
    stopping = asyncio.ensure_future(workers.stop(DECODER))
    chunks += [chunk async for chunk in answer if not stopping.done()]
    # Every token of it came while the worker was still there.
    assert sum(len(chunk["token_ids"]) for chunk in chunks) == 50
    assert chunks[-1]["finish_reason"] == "length"
    await stopping


async def test_an_answer_that_takes_too_long_does_not_keep_a_worker_that_is_stopped(workers: Workers) -> None:
    await workers.start(DECODER, "decode", drain_s=0.1)
    answer = workers.stream(DECODER, prompt(stop_conditions={"max_tokens": 1_000_000}), FakeContext())
    await anext(answer)
    async with asyncio.timeout(60):
        await workers.stop(DECODER)
