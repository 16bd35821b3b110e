"""What a step of the engine computes, request by request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vllm.v1.core.sched.output import SchedulerOutput

from nebula_protocol.cost import attention_pairs
from pic_worker.adapters.vllm.tracked_request import TrackedRequest
from pic_worker.core.load_queue import LoadChunk
from pic_worker.core.prefill_ledger import StepShare, StepTotals


@dataclass(frozen=True, slots=True)
class ScheduledWork:
    """A request's tokens [start, end) in the engine's own forward pass."""

    request_id: str
    start: int
    end: int
    block_ids: list[int]
    """Its whole table, or the blocks that are new in it."""
    is_whole_table: bool


def scheduled_work(output: SchedulerOutput) -> list[ScheduledWork]:
    """Those that were running before come first."""
    num_tokens = output.num_scheduled_tokens
    cached = output.scheduled_cached_reqs
    work: list[ScheduledWork] = []
    for request_id, blocks, start in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
        is_resumed = request_id in cached.resumed_req_ids
        block_ids = list(blocks[0]) if blocks is not None else []
        work.append(ScheduledWork(request_id, start, start + num_tokens[request_id], block_ids, is_resumed))
    for new in output.scheduled_new_reqs:
        start = new.num_computed_tokens
        work.append(ScheduledWork(new.req_id, start, start + num_tokens[new.req_id], list(new.block_ids[0]), True))
    return work


def step_shares(
    work: Sequence[ScheduledWork], chunks: Sequence[LoadChunk], requests: Mapping[str, TrackedRequest]
) -> tuple[list[StepShare], StepTotals]:
    """What each prompt takes of the step, and all of it. Tokens of answers count only in the totals."""
    tokens: dict[str, int] = {}
    pairs: dict[str, float] = {}
    all_tokens, all_pairs, recomputed_tokens = 0, 0.0, 0
    for chunk in chunks:
        recomputed_tokens += chunk.num_tokens
        tracked = requests[chunk.request_id]
        tokens[chunk.request_id] = chunk.num_tokens
        pairs[chunk.request_id] = tracked.recompute_pairs(chunk.num_tokens)
        all_pairs += pairs[chunk.request_id]
    for scheduled in work:
        num_tokens = scheduled.end - scheduled.start
        all_tokens += num_tokens
        all_pairs += attention_pairs(num_tokens, scheduled.start)
        request = requests.get(scheduled.request_id)
        num_prompt = min(scheduled.end, request.prompt_tokens) - scheduled.start if request is not None else 0
        if num_prompt > 0:
            tokens[scheduled.request_id] = tokens.get(scheduled.request_id, 0) + num_prompt
            pairs[scheduled.request_id] = pairs.get(scheduled.request_id, 0.0) + attention_pairs(
                num_prompt, scheduled.start
            )
    shares = [StepShare(request_id, tokens[request_id], pairs[request_id]) for request_id in tokens]
    return shares, StepTotals(all_tokens + recomputed_tokens, all_pairs, recomputed_tokens)
