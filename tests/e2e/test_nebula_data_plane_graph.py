"""`dynamo serve graphs:nebula` with real vLLM workers: segments move between two prefill workers.

Which worker has a request is the router's choice; here some are sent past it, with plans made by hand.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import cast

import httpx
import psutil
import pytest
from nats.aio.client import Client
from support import router_dynamo_caller
from support.json_process import JsonProcess
from support.running_graph import Json, RunningGraph, eventually, receipt_of
from support.tiny_graph import REQUEST_LIMIT_S, tiny_graph, tiny_model, tokens_of

from nebula_bench.serving.process_metrics import ProcessMetrics
from nebula_protocol.codec import decode, encode, from_plain, to_plain
from nebula_protocol.domain import tenant_domain
from nebula_protocol.handover import HANDOVER_KEY, Handover
from nebula_protocol.hashing import hash_segment
from nebula_protocol.ids import DomainId, RequestId, WorkerId, WorkerWithDpRank
from nebula_protocol.messages import StateChunk, StateRequest
from nebula_protocol.plan import PLAN_KEY, Estimate, Plan, SegmentPlan, Source
from nebula_protocol.receipt import FallbackReason, Receipt
from nebula_protocol.subjects import state_subject
from nebula_protocol.tokens import as_token_array
from nebula_serve.run_info import ProcessInfo

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(480)]

POOL = "nebula_pool"
SYSTEM, PASSAGE, QUESTION = 40, 200, 23
NUM_ANSWER_TOKENS = 6
RESTART_LIMIT_S = 400.0


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGraph]:
    folder, model_dir = tmp_path_factory.mktemp("data-plane-graph"), tiny_model(tmp_path_factory.mktemp("tiny"))
    with tiny_graph(folder, model_dir, device_capacity_tokens=8192) as graph:
        yield graph


@dataclass(frozen=True)
class Answer:
    handover: Handover
    first_token_ids: list[int]


class WayPast:
    """Past the router, to the worker that the test wants."""

    def __init__(self, graph: RunningGraph) -> None:
        self.graph = graph
        (decode_worker,) = graph.processes("DecodeWorker")
        self.decode_id = worker_id_of(graph, decode_worker)
        self._environment = environment_of(decode_worker)
        self._callers = {
            component: JsonProcess(
                router_dynamo_caller.__file__,
                f"{POOL}.{component}.generate",
                environment=self._environment | {"PYTHONPATH": ":".join(sys.path)},
            )
            for component in ("prefill", "decode")
        }
        for caller in self._callers.values():
            caller.wait_for(event="ready")
        self._numbers = count()

    def close(self) -> None:
        for caller in self._callers.values():
            caller.close()

    def domain_of(self, worker_id: WorkerId) -> DomainId:
        return asyncio.run(_ask_domain(self._environment["NATS_SERVER"], worker_id))

    def call(self, component: str, worker_id: WorkerId, request: Mapping[str, object]) -> list[Json]:
        name = f"call-{next(self._numbers)}"
        caller = self._callers[component]
        caller.send(do="call", name=name, worker_id=worker_id, request=request)
        ended = caller.wait_for(REQUEST_LIMIT_S, ended=name)
        assert ended["how"] == "done", ended
        return cast("list[Json]", ended["chunks"])

    def prefill(
        self,
        worker_id: WorkerId,
        passages: tuple[str, str],
        source: Source,
        from_worker: WorkerId,
        *,
        salt: str = "",
        question: str = "who",
    ) -> Answer:
        tokens = prompt_of(passages, question)
        plan = plan_of(tokens, worker_id, source, from_worker, tenant_domain(self.domain_of(worker_id), salt))
        request: Json = {
            "token_ids": tokens,
            "sampling_options": {"temperature": 0.0},
            "stop_conditions": {"max_tokens": NUM_ANSWER_TOKENS, "ignore_eos": True},
            "annotations": [f"nebula.salt={salt}"] if salt else [],
            "extra_args": {PLAN_KEY: to_plain(plan)},
        }
        (chunk,) = self.call("prefill", worker_id, request)
        handover = from_plain(chunk["disaggregated_params"][HANDOVER_KEY], Handover)
        return Answer(handover, chunk["token_ids"])


async def _ask_domain(nats_url: str, worker_id: WorkerId) -> DomainId:
    client = Client()
    await client.connect(nats_url)
    try:
        message = await client.request(state_subject(POOL, worker_id), encode(StateRequest()), timeout=20)
        return decode(message.data, StateChunk).card.domain.domain_id
    finally:
        await client.close()


@pytest.fixture(scope="module")
def past(graph: RunningGraph) -> Iterator[WayPast]:
    past = WayPast(graph)
    yield past
    past.close()


def environment_of(process: ProcessInfo) -> dict[str, str]:
    assert process.pid is not None
    own = psutil.Process(process.pid).environ()
    # The caller is no service of the graph.
    return {name: value for name, value in own.items() if name != "DYN_SYSTEM_PORT"}


def worker_id_of(graph: RunningGraph, process: ProcessInfo) -> WorkerId:
    worker_id = ProcessMetrics(graph.metrics_of(process)).worker_id()
    assert worker_id is not None
    return worker_id


def prompt_of(passages: tuple[str, str], question: str) -> list[int]:
    parts = [tokens_of(f"system-{question}", SYSTEM), *(tokens_of(passage, PASSAGE) for passage in passages)]
    return [token for part in [*parts, tokens_of(question, QUESTION)] for token in part]


def plan_of(tokens: list[int], target: WorkerId, source: Source, from_worker: WorkerId, domain_id: DomainId) -> Plan:
    ids = as_token_array(tokens)
    return Plan(
        request_id=RequestId("by-hand"),
        domain_id=domain_id,
        target=WorkerWithDpRank(target),
        segments=tuple(
            SegmentPlan(
                start=start,
                end=start + PASSAGE,
                segment_hash=hash_segment(ids[start : start + PASSAGE]),
                source=source,
                from_worker=WorkerWithDpRank(from_worker),
            )
            for start in (SYSTEM, SYSTEM + PASSAGE)
        ),
        prefix_hit_tokens=0,
        wait_budget_s=30.0,
        estimate=Estimate(free_in_s=0.0, arrive_in_s=0.0, compute_s=0.0, completion_s=0.0),
        hands_over=False,
    )


def compute(graph: RunningGraph, passages: tuple[str, str], *annotations: str) -> WorkerId:
    """Lets the graph answer; returns the worker that computed the passages."""
    spans = [[SYSTEM, SYSTEM + PASSAGE], [SYSTEM + PASSAGE, SYSTEM + 2 * PASSAGE]]
    marks = f"nebula.spans={json.dumps(spans, separators=(',', ':'))}"
    answer = graph.complete(prompt_of(passages, "what"), annotations=[marks, *annotations], max_tokens=2)
    receipt = receipt_of(answer)
    assert receipt["segment_hit_tokens"] == 0
    return WorkerId(receipt["worker"]["worker_id"])


def other_than(graph: RunningGraph, worker_id: WorkerId) -> WorkerId:
    ids = {worker_id_of(graph, process) for process in graph.processes("PrefillWorker")}
    (other,) = ids - {worker_id}
    return other


def live_workers(graph: RunningGraph) -> set[WorkerId]:
    """Prefill workers that serve at this moment."""
    found: set[WorkerId] = set()
    for process in graph.processes("PrefillWorker"):
        if process.metrics_url is None:
            continue
        with contextlib.suppress(httpx.HTTPError):
            worker_id = ProcessMetrics(graph.metrics_of(process)).worker_id()
            found |= set() if worker_id is None else {worker_id}
    return found


def assert_shared(past: WayPast, passages: tuple[str, str], *, source: WorkerId, home: WorkerId) -> None:
    """What the one computes, the other uses with the same output; neither has seen the prompt's beginning."""
    past.prefill(source, passages, Source.COMPUTE, source, question=f"where-{home}")
    turned, question = passages[::-1], f"when-{home}"
    fetched = past.prefill(home, turned, Source.FETCH, source, question=question)
    assert fetched.handover.receipt.fetched_hit_tokens == 2 * PASSAGE
    local = past.prefill(source, turned, Source.LOCAL, source, question=question)
    assert local.handover.receipt.local_hit_tokens == 2 * PASSAGE
    assert fetched.first_token_ids == local.first_token_ids


def fallbacks_of(receipt: Receipt) -> set[FallbackReason | None]:
    return {segment.fallback for segment in receipt.segments}


def test_a_passage_computed_on_one_worker_is_used_by_the_other_with_the_same_output(
    graph: RunningGraph, past: WayPast
) -> None:
    home = compute(graph, ("p1", "p2"))
    other = other_than(graph, home)
    fetched = past.prefill(other, ("p2", "p1"), Source.FETCH, home)
    receipt = fetched.handover.receipt
    assert (receipt.fetched_hit_tokens, receipt.local_hit_tokens) == (2 * PASSAGE, 0)
    assert receipt.computed_tokens == SYSTEM + QUESTION
    assert receipt.timing.wait_s > 0
    local = past.prefill(home, ("p2", "p1"), Source.LOCAL, home)
    assert local.handover.receipt.local_hit_tokens == 2 * PASSAGE
    assert fetched.first_token_ids == local.first_token_ids


def test_tenants_do_not_share(graph: RunningGraph, past: WayPast) -> None:
    home = compute(graph, ("t1", "t2"), "nebula.salt=mine")
    other = other_than(graph, home)
    for salt in ("", "yours"):
        theirs = past.prefill(other, ("t2", "t1"), Source.FETCH, home, salt=salt)
        assert fallbacks_of(theirs.handover.receipt) == {FallbackReason.NOT_THERE}
    mine = past.prefill(other, ("t1", "t2"), Source.FETCH, home, salt="mine")
    assert mine.handover.receipt.fetched_hit_tokens == 2 * PASSAGE


def test_a_source_that_dies_costs_time_but_not_the_answer_and_may_come_back(graph: RunningGraph, past: WayPast) -> None:
    home = compute(graph, ("d1", "d2"))
    other = other_than(graph, home)
    (victim,) = [process for process in graph.processes("PrefillWorker") if worker_id_of(graph, process) == home]
    assert victim.pid is not None
    worker = psutil.Process(victim.pid)
    for process in [worker, *worker.children(recursive=True)]:
        process.kill()
    lost = past.prefill(other, ("d2", "d1"), Source.FETCH, home)
    # Which of the two depends on whether the loss or the end of the wait is noticed first.
    assert fallbacks_of(lost.handover.receipt) <= {FallbackReason.SOURCE_GONE, FallbackReason.LATE}
    assert lost.handover.receipt.fetched_hit_tokens == 0
    assert lost.handover.receipt.segment_hit_tokens == 0
    # Under another id, and both as home and as source.
    eventually(lambda: len(live_workers(graph) - {home}) == 2, "the killed worker serves again", RESTART_LIMIT_S)
    (fresh,) = live_workers(graph) - {other}
    assert_shared(past, ("b1", "b2"), source=other, home=fresh)
    assert_shared(past, ("b3", "b4"), source=fresh, home=other)
