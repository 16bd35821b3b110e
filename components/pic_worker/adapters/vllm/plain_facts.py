"""The facts of a prefill without the connector for reuse, from vLLM's own account of the request."""

from typing import TYPE_CHECKING

from nebula_protocol.cost import attention_pairs
from pic_worker.adapters.vllm.engine_wire import PrefillFacts, SegmentFact
from pic_worker.core.engine_request import EngineRequest

if TYPE_CHECKING:
    # Takes seconds to import.
    from vllm.outputs import RequestOutput


def plain_facts(request: EngineRequest, output: "RequestOutput", max_step_tokens: int) -> PrefillFacts:
    """As if nothing else had run in the request's steps: vLLM tells no more."""
    num_tokens = len(output.prompt_token_ids or ())
    num_cached = output.num_cached_tokens or 0
    num_computed = num_tokens - num_cached
    pairs = attention_pairs(num_computed, num_cached)
    times = output.metrics
    return PrefillFacts(
        request_id=request.request_id,
        prompt_tokens=num_tokens,
        device_prefix_tokens=num_cached,
        host_prefix_tokens=0,
        segments=tuple(
            SegmentFact(
                segment_hash=plan.segment_hash,
                start=plan.start,
                end=plan.end,
                prefix_tokens=max(0, min(plan.end, num_cached) - plan.start),
            )
            for plan in request.segments
        ),
        queued_s=max(0.0, times.scheduled_ts - times.queued_ts) if times is not None else 0.0,
        computed_tokens=num_computed,
        attention_pairs=pairs,
        num_steps=max(1, -(-num_computed // max_step_tokens)),
        step_tokens=num_computed,
        step_pairs=pairs,
        step_s=max(0.0, times.first_token_ts - times.scheduled_ts) if times is not None else 0.0,
        is_whole=True,
    )
