"""Receipts as a worker would give them, with little in them."""

from nebula_bench.pic_vllm.first_token_times import FirstToken
from nebula_protocol.ids import RequestId, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.receipt import Receipt, StepWork, Timing


def receipt(segment_hit_tokens: int = 0, prompt_tokens: int = 4000) -> Receipt:
    return Receipt(
        request_id=RequestId("r"),
        worker=WorkerWithDpRank(WorkerId(1)),
        epoch=WorkerEpoch(1),
        prompt_tokens=prompt_tokens,
        prefix_hit_tokens=0,
        segment_hit_tokens=segment_hit_tokens,
        local_hit_tokens=segment_hit_tokens,
        fetched_hit_tokens=0,
        recomputed_tokens=segment_hit_tokens // 10,
        computed_tokens=prompt_tokens - segment_hit_tokens,
        invalid_hit_tokens=0,
        segments=(),
        timing=Timing(queue_s=0.0, wait_s=0.0, compute_s=1.0, total_s=1.0),
        work=StepWork(computed_tokens=1, attention_pairs=1.0, num_steps=1, step_tokens=1, step_pairs=1.0, step_s=1.0),
        last_event_ids={},
    )


def first_token(after_s: float, segment_hit_tokens: int = 0) -> FirstToken:
    return FirstToken(after_s, receipt(segment_hit_tokens))
