"""Whether the fetches that a plan asks for are visibly slower than computing."""

from nebula_protocol.cost import LinkFit, attention_pairs
from nebula_protocol.ids import SegmentHash
from nebula_protocol.plan import Source
from pic_worker.core.request_state import PromptState, SegmentState
from pic_worker.core.step_cost import LoadCost, StepCost

NO_VETO: frozenset[SegmentHash] = frozenset()


def vetoed_segments(
    state: PromptState,
    remote: list[SegmentState],
    covered_tokens: int,
    *,
    step_cost: StepCost,
    load_cost: LoadCost,
    peer_link: LinkFit,
    veto_ratio: float,
) -> frozenset[SegmentHash]:
    """The remote segments of a prompt that finds the engine idle, if fetching them all is not worth it.

    Only clear cases count: every one is a plain fetch, so nothing else makes the prompt wait, and all of them are
    there, so the time of their transfer is known. It is compared with what their tokens add to the prompt's step.

    Args:
        covered_tokens: leading tokens that the prefix covers.
        veto_ratio: how many times longer a vetoed fetch takes.
    """
    if any(segment.plan.source is not Source.FETCH for segment in remote):
        return NO_VETO
    num_tokens = sum(segment.plan.end - segment.plan.start for segment in remote)
    pairs = sum(attention_pairs(segment.plan.end - segment.plan.start, segment.plan.start) for segment in remote)
    left_tokens = state.num_tokens - covered_tokens
    if not 0 < num_tokens < left_tokens:
        return NO_VETO
    left_pairs = attention_pairs(left_tokens, covered_tokens)
    without_s = step_cost.step_s(left_tokens - num_tokens, left_pairs - pairs)
    compute_s = step_cost.step_s(left_tokens, left_pairs) - without_s
    # Peers send at the same time into one link: their floors overlap, their bytes do not.
    transfer_s = peer_link.transfer_s(num_tokens * load_cost.kv_bytes_per_token)
    fetch_s = transfer_s + num_tokens * load_cost.segment_s_per_token
    hashes = frozenset(segment.plan.segment_hash for segment in remote)
    return hashes if fetch_s > veto_ratio * compute_s else NO_VETO
