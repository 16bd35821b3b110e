"""A small engine in virtual time, with round costs: a token takes 1 ms to compute and 1 ms to load."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nebula_protocol.cost import LinkFit
from nebula_protocol.fusion import legolink
from nebula_protocol.hashing import hash_blocks, hash_segment
from nebula_protocol.ids import DomainId, RequestId, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.layout import Mark, Segment
from nebula_protocol.messages import FetchRequest, WantedSegment
from nebula_protocol.plan import Estimate, HelperTask, Plan, SegmentPlan, Source
from nebula_protocol.receipt import Receipt
from nebula_protocol.tokens import TokenArray
from pic_worker.core.effects import Effects, FetchAnswer, FetchCommand, TicketId, WorkerEvent
from pic_worker.core.engine_config import EngineConfig
from pic_worker.core.engine_request import (
    EngineRequest,
    HelperRequest,
    helper_request,
    planned_request,
    unplanned_request,
)
from pic_worker.core.prefill_table import PrefillTable, TableFit, make_table
from pic_worker.core.sim_engine import SimEngine
from pic_worker.core.step_cost import LoadCost, StepCost
from pic_worker.core.step_plan import StepPlan

BLOCK = 4
RECOMPUTE = 2
NUM_LAYERS = 20
DOMAIN = DomainId("domain")
OWN = WorkerWithDpRank(WorkerId(1))
PEER = WorkerWithDpRank(WorkerId(2))
OTHER_PEER = WorkerWithDpRank(WorkerId(3))
TOKEN_S = 0.001
LOAD_COST = LoadCost(kv_bytes_per_token=10, host_load_bytes_per_s=1e4, rotation_bytes_per_s=math.inf)
CONFIG = EngineConfig(
    worker=OWN,
    epoch=WorkerEpoch(7),
    block_size_tokens=BLOCK,
    device_capacity_tokens=400,
    store_capacity_tokens=200,
    prefix_ratio=0.5,
    max_step_tokens=100,
    max_running=8,
    kv_bytes_per_token=10,
    num_layers=NUM_LAYERS,
    fusion=legolink(RECOMPUTE),
    peer_link=LinkFit(floor_s=0.001, bytes_per_s=1e5),
    prompt_hold_s=5.0,
    lease_s=2.0,
    join_grace_s=0.25,
    helper_patience_s=0.25,
    veto_ratio=math.inf,
)


def linear_table() -> PrefillTable:
    """1 ms a token at any context."""
    return make_table(
        model="linear",
        dtype="bf16",
        system="none",
        kv_bytes_per_token=10,
        fit=TableFit(step_s=0.0, per_token_s=TOKEN_S, per_pair_s=0.0),
        new_tokens=(1, 1000),
        context_tokens=(0, 1000),
        rows_s=((TOKEN_S, TOKEN_S), (1000 * TOKEN_S, 1000 * TOKEN_S)),
    )


def passage(number: int, num_tokens: int) -> TokenArray:
    """Tokens that no other passage of another number shares."""
    return np.arange(num_tokens, dtype=np.uint32) + np.uint32(1000 * (number + 1))


def join(*pieces: TokenArray) -> TokenArray:
    return np.concatenate(pieces)


def span(
    tokens: TokenArray,
    start: int,
    end: int,
    source: Source = Source.COMPUTE,
    from_worker: WorkerWithDpRank | None = None,
    *,
    keep: bool = True,
) -> SegmentPlan:
    """One segment of a plan."""
    return SegmentPlan(
        start=start,
        end=end,
        segment_hash=hash_segment(tokens[start:end]),
        source=source,
        from_worker=from_worker,
        keep=keep,
    )


def planned(
    request_id: str,
    tokens: TokenArray,
    segments: Sequence[SegmentPlan] = (),
    *,
    wait_budget_s: float = 0.0,
    expected_prefix_tokens: int = 0,
    domain_id: DomainId = DOMAIN,
    pic: bool = True,
    hold_prompt: bool = False,
) -> EngineRequest:
    plan = Plan(
        request_id=RequestId(request_id),
        domain_id=domain_id,
        target=OWN,
        segments=tuple(segments),
        prefix_hit_tokens=expected_prefix_tokens,
        wait_budget_s=wait_budget_s,
        estimate=Estimate(free_in_s=0.0, arrive_in_s=0.0, compute_s=0.0, completion_s=0.0),
        pic=pic,
    )
    return planned_request(
        RequestId(request_id),
        plan,
        tokens,
        hash_blocks(tokens, BLOCK),
        lineage="" if pic else "exact",
        domain_id=DOMAIN,
        hold_prompt=hold_prompt,
    )


def unplanned(
    request_id: str, tokens: TokenArray, cuts: Sequence[tuple[int, int]] = (), *, hold_prompt: bool = False
) -> EngineRequest:
    segments = [Segment(start, end, hash_segment(tokens[start:end]), Mark.SPAN) for start, end in cuts]
    return unplanned_request(
        RequestId(request_id),
        segments,
        tokens,
        hash_blocks(tokens, BLOCK),
        lineage="",
        domain_id=DOMAIN,
        hold_prompt=hold_prompt,
    )


def helper(request_id: str, *passages: TokenArray) -> HelperRequest:
    task = HelperTask(
        for_request=RequestId("theirs"),
        domain_id=DOMAIN,
        segments=tuple((hash_segment(tokens), len(tokens)) for tokens in passages),
    )
    return helper_request(RequestId(request_id), task, join(*passages))


def fetch_of(*passages: TokenArray, wait_s: float = 0.0, join_them: bool = False) -> FetchRequest:
    return FetchRequest(
        request_id=RequestId("theirs"),
        from_worker=PEER.worker_id,
        domain_id=DOMAIN,
        wait_s=wait_s,
        segments=tuple(
            WantedSegment(segment_hash=hash_segment(tokens), num_tokens=len(tokens), join=join_them)
            for tokens in passages
        ),
    )


class EngineWorld:
    """The engine, its clock, and everything that its effects have told so far."""

    def __init__(self, **changes: object) -> None:
        config = replace(CONFIG, **changes)  # type: ignore[arg-type]
        self.engine = SimEngine(config, StepCost(linear_table()), LOAD_COST)
        self.now_s = 0.0
        self.events: list[WorkerEvent] = []
        self.fetches: list[FetchCommand] = []
        self.answers: dict[TicketId, FetchAnswer] = {}
        self.receipts: dict[str, Receipt] = {}
        self.steps: list[StepPlan] = []

    def take(self, effects: Effects) -> Effects:
        self.events += effects.events
        self.fetches += effects.fetches
        for answer in effects.answers:
            self.answers[answer.ticket] = answer
        for finished in effects.finished:
            self.receipts[finished.request_id] = finished.receipt
        return effects

    def submit(self, request: EngineRequest | HelperRequest) -> Effects:
        if isinstance(request, HelperRequest):
            return self.take(self.engine.submit_helper(request, self.now_s))
        return self.take(self.engine.submit(request, self.now_s))

    def begin_step(self) -> StepPlan | None:
        turn = self.engine.next_step(self.now_s)
        self.take(turn.effects)
        if turn.step is not None:
            self.steps.append(turn.step)
        return turn.step

    def end_step(self, step: StepPlan) -> Effects:
        self.now_s += step.duration_s
        return self.take(self.engine.finish_step(self.now_s))

    def step(self) -> StepPlan | None:
        """One whole step, if anything can run."""
        step = self.begin_step()
        if step is not None:
            self.end_step(step)
        return step

    def run(self) -> None:
        """Steps until nothing can run without waiting."""
        while self.step() is not None:
            pass

    def serve(self, request: EngineRequest | HelperRequest) -> Receipt:
        """Submits a request and runs the engine until it is done."""
        self.submit(request)
        self.run()
        return self.receipts[request.request_id]
