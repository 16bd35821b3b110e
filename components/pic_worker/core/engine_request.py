"""What is submitted to the engine: prompts, and helper work on segments for another worker's prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nebula_protocol.fusion import Fusion
from nebula_protocol.hashing import HashArray, hash_segment
from nebula_protocol.ids import DomainId, RequestId, SegmentHash
from nebula_protocol.layout import Segment
from nebula_protocol.plan import HelperTask, Plan, SegmentPlan, Source
from nebula_protocol.tokens import TokenArray


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """A prompt to prefill. Make it with `planned_request`, `unplanned_request` or, without PIC, `exact_request`."""

    request_id: RequestId
    tokens: TokenArray
    block_hashes: HashArray
    """As kv-events of this request's lineage name its full blocks, shape [tokens // block_size_tokens]."""
    lineage: str
    """Salt of the prefix blocks: see `nebula_protocol.lineage`."""
    domain_id: DomainId
    """Of this worker and the request's tenant."""
    segments: tuple[SegmentPlan, ...] = ()
    """Ascending and disjoint; their hashes fit the tokens."""
    has_plan: bool = False
    domain_differs: bool = False
    """The plan was made for another domain: nothing that it names may be reused."""
    expected_prefix_tokens: int = 0
    wait_budget_s: float = 0.0
    hold_prompt: bool = True
    """Keep the prompt's blocks after prefill until they are pulled."""
    fusion: Fusion | None = None
    """None: as the worker is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperRequest:
    """Segments to compute alone, one behind another in `tokens`."""

    request_id: RequestId
    for_request: RequestId
    tokens: TokenArray
    domain_id: DomainId
    segments: tuple[tuple[SegmentHash, int], ...]
    """(hash, number of tokens), in the order of the tokens; only those whose hash fits its tokens."""


def planned_request(
    request_id: RequestId,
    plan: Plan,
    tokens: TokenArray,
    block_hashes: HashArray,
    *,
    lineage: str,
    domain_id: DomainId,
    hold_prompt: bool = True,
    fusion: Fusion | None = None,
) -> EngineRequest:
    """A request with the router's plan. Spans that do not fit the prompt are ignored: they become gap tokens.

    Args:
        domain_id: the worker's own view of the request's domain; a plan for another one reuses nothing.
    """
    return EngineRequest(
        request_id=request_id,
        tokens=tokens,
        block_hashes=block_hashes,
        lineage=lineage,
        domain_id=domain_id,
        segments=_fitting_spans(plan.segments, tokens) if plan.pic else (),
        has_plan=True,
        domain_differs=plan.domain_id != domain_id,
        expected_prefix_tokens=plan.prefix_hit_tokens,
        wait_budget_s=plan.wait_budget_s,
        hold_prompt=hold_prompt,
        fusion=fusion,
    )


def unplanned_request(
    request_id: RequestId,
    segments: Sequence[Segment],
    tokens: TokenArray,
    block_hashes: HashArray,
    *,
    lineage: str,
    domain_id: DomainId,
    hold_prompt: bool = True,
    fusion: Fusion | None = None,
) -> EngineRequest:
    """A request that came without a plan: the worker's own cut, reuse from the local store, no waiting."""
    own = tuple(
        SegmentPlan(start=cut.start, end=cut.end, segment_hash=cut.segment_hash, source=Source.LOCAL)
        for cut in segments
    )
    return EngineRequest(
        request_id=request_id,
        tokens=tokens,
        block_hashes=block_hashes,
        lineage=lineage,
        domain_id=domain_id,
        segments=own,
        hold_prompt=hold_prompt,
        fusion=fusion,
    )


def exact_request(
    request_id: RequestId,
    tokens: TokenArray,
    block_hashes: HashArray,
    *,
    lineage: str,
    domain_id: DomainId,
    hold_prompt: bool = True,
) -> EngineRequest:
    """A request that reuses and keeps nothing but exact prefix blocks of its own lineage."""
    return unplanned_request(
        request_id, (), tokens, block_hashes, lineage=lineage, domain_id=domain_id, hold_prompt=hold_prompt
    )


def helper_request(request_id: RequestId, task: HelperTask, tokens: TokenArray) -> HelperRequest:
    """Helper work as the router asked for it; segments that are cut off or whose hash differs are left out."""
    kept: list[tuple[SegmentHash, int]] = []
    pieces: list[TokenArray] = []
    at = 0
    for segment_hash, num_tokens in task.segments:
        piece = tokens[at : at + num_tokens]
        at += num_tokens
        if num_tokens > 0 and len(piece) == num_tokens and hash_segment(piece) == segment_hash:
            kept.append((segment_hash, num_tokens))
            pieces.append(piece)
    return HelperRequest(
        request_id=request_id,
        for_request=task.for_request,
        tokens=np.concatenate(pieces) if pieces else tokens[:0],
        domain_id=task.domain_id,
        segments=tuple(kept),
    )


def _fitting_spans(spans: Sequence[SegmentPlan], tokens: TokenArray) -> tuple[SegmentPlan, ...]:
    """Those that lie in the prompt in ascending order and whose hash is that of its tokens."""
    fitting: list[SegmentPlan] = []
    end = 0
    for span in spans:
        inside = end <= span.start < span.end <= len(tokens)
        if inside and hash_segment(tokens[span.start : span.end]) == span.segment_hash:
            fitting.append(span)
            end = span.end
    return tuple(fitting)
