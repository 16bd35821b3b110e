"""What workers answer to the router. The answer's token behind n tokens is 7000 + n, whoever makes it."""

from collections.abc import Mapping

from msgspec.structs import replace

from nebula_protocol.codec import from_plain, to_plain
from nebula_protocol.handover import HANDOVER_KEY, Handover, Sampled
from nebula_protocol.ids import DomainId, RequestId, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.plan import HELPER_TASK_KEY, PLAN_KEY, Estimate, HelperTask, Plan, SegmentPlan, Source
from nebula_protocol.receipt import Receipt, SegmentOutcome, StepWork, Timing
from nebula_router.ports import JsonObject

EPOCH = WorkerEpoch(1)
_ANSWER = 7000
_FETCHED = frozenset({Source.FETCH, Source.JOIN, Source.COMPUTE_AT})
_PLAN_WITHOUT_SEGMENTS = Plan(
    request_id=RequestId("r"),
    domain_id=DomainId("d"),
    target=WorkerWithDpRank(WorkerId(1)),
    segments=(),
    prefix_hit_tokens=0,
    wait_budget_s=0.0,
    estimate=Estimate(free_in_s=0.0, arrive_in_s=0.0, compute_s=0.0, completion_s=0.0),
)


def answer_tokens(num_prompt_tokens: int, num_tokens: int) -> list[int]:
    """The whole answer to a prompt."""
    return [_ANSWER + num_prompt_tokens + index for index in range(num_tokens)]


def tokens_of(request: Mapping[str, object]) -> list[int]:
    token_ids = request["token_ids"]
    assert isinstance(token_ids, list)
    return token_ids


def limit_of(request: Mapping[str, object]) -> int | None:
    conditions = request["stop_conditions"]
    assert isinstance(conditions, dict)
    limit = conditions["max_tokens"]
    assert limit is None or isinstance(limit, int)
    return limit


def plan_of(request: Mapping[str, object]) -> Plan:
    return from_plain(_extra_args(request)[PLAN_KEY], Plan)


def helper_task_of(request: Mapping[str, object]) -> HelperTask:
    return from_plain(_extra_args(request)[HELPER_TASK_KEY], HelperTask)


def is_helper_request(request: Mapping[str, object]) -> bool:
    return HELPER_TASK_KEY in _extra_args(request)


def receipt_for(plan: Plan, num_prompt_tokens: int, **changes: object) -> Receipt:
    """Everything went as planned, without a prefix hit: what was to be computed is kept now."""
    local = sum(segment.end - segment.start for segment in plan.segments if segment.source is Source.LOCAL)
    fetched = sum(segment.end - segment.start for segment in plan.segments if segment.source in _FETCHED)
    receipt = Receipt(
        request_id=plan.request_id,
        worker=plan.target,
        epoch=EPOCH,
        prompt_tokens=num_prompt_tokens,
        prefix_hit_tokens=0,
        segment_hit_tokens=local + fetched,
        local_hit_tokens=local,
        fetched_hit_tokens=fetched,
        recomputed_tokens=0,
        computed_tokens=num_prompt_tokens - local - fetched,
        invalid_hit_tokens=0,
        segments=tuple(map(_outcome, plan.segments)),
        timing=Timing(queue_s=0.0, wait_s=0.0, compute_s=0.1, total_s=0.1),
        work=StepWork(computed_tokens=0, attention_pairs=0.0, num_steps=0, step_tokens=0, step_pairs=0.0, step_s=0.0),
        last_event_ids={},
    )
    return replace(receipt, **changes)


def prefill_chunk(receipt: Receipt, token_ids: list[int]) -> JsonObject:
    handover = Handover(
        request_id=receipt.request_id,
        prefill_worker_id=receipt.worker.worker_id,
        epoch=receipt.epoch,
        prompt_tokens=receipt.prompt_tokens,
        kv_bytes=receipt.prompt_tokens * 1_000,
        receipt=receipt,
        first=Sampled(tuple(token_ids), "length"),
    )
    return {
        "token_ids": token_ids,
        "index": 0,
        "text": None,
        "finish_reason": "length",
        "completion_usage": {"prompt_tokens": receipt.prompt_tokens, "completion_tokens": 1, "total_tokens": -1},
        "disaggregated_params": {HANDOVER_KEY: to_plain(handover)},
    }


def prefill_reply(worker_id: WorkerId, request: Mapping[str, object], **receipt_changes: object) -> list[JsonObject]:
    """A prefill worker's whole reply to a prompt with a plan, or to a helper's task."""
    if is_helper_request(request):
        return [{"token_ids": [], "index": 0, "finish_reason": "stop"}]
    num_tokens = len(tokens_of(request))
    plan = plan_of(request)
    assert plan.target.worker_id == worker_id
    return [prefill_chunk(receipt_for(plan, num_tokens, **receipt_changes), answer_tokens(num_tokens, 1))]


def a_receipt(**changes: object) -> Receipt:
    """Of a prompt of 100 tokens without segments."""
    receipt = receipt_for(_PLAN_WITHOUT_SEGMENTS, 100)
    return replace(receipt, **changes)


def _outcome(segment: SegmentPlan) -> SegmentOutcome:
    return SegmentOutcome(
        start=segment.start,
        end=segment.end,
        segment_hash=segment.segment_hash,
        planned=segment.source,
        done=segment.source,
        stored=segment.start > 0,
    )


def _extra_args(request: Mapping[str, object]) -> Mapping[str, object]:
    extra_args = request["extra_args"]
    assert isinstance(extra_args, dict)
    return extra_args
