"""The prefix that each worker has of a prompt, and what of it is still being computed."""

from dataclasses import dataclass

import numpy as np

from nebula_router.core.engine_cost import EngineCosts
from nebula_router.core.load_snapshot import FloatArray
from nebula_router.core.plan_question import PlanQuestion
from nebula_router.core.segment_sources import BoolArray, SegmentSources


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """Shape [W]. A prefix that is still being computed is of use only when that is done: not in the same step, and
    least of all before the other request's turn. So it is waited for like a copy."""

    tokens: FloatArray
    unfinished: BoolArray | None
    """Shape [R, W]: segments under the hit that are still being computed at the worker; None for none."""
    arrive_in_s: FloatArray
    """When the last of those is there; minus infinity for none."""


def find_prefix(question: PlanQuestion, costs: EngineCosts, sources: SegmentSources | None) -> PrefixHit:
    """The hit that is worth using: whole blocks, and never all of the prompt, since its last token is computed.

    Where waiting for the unfinished rest takes longer than computing it again, at the price that engine time has, the
    hit ends where that begins.
    """
    layout = question.layout
    limit = (layout.num_tokens - 1) // layout.block_size_tokens * layout.block_size_tokens
    tokens = np.minimum(question.coverage.prefix_tokens, limit).astype(np.float64)
    hit = _with_unfinished(tokens, sources)
    if sources is None or hit.unfinished is None:
        return hit
    late = hit.unfinished & (sources.ready_in_s > question.load.turn_in_s)
    if not late.any():
        return hit
    kept = np.minimum.reduce(np.where(late, sources.spans.starts[:, None], tokens), axis=0)
    kept = np.minimum(kept, tokens) // layout.block_size_tokens * layout.block_size_tokens
    again_s = (tokens - kept) * (costs.per_token_s + costs.per_pair_s * 0.5 * (tokens + kept))
    sooner = hit.arrive_in_s - question.load.turn_in_s > (1.0 + question.load.work_price) * again_s
    return _with_unfinished(np.where(sooner, kept, tokens), sources) if sooner.any() else hit


def _with_unfinished(tokens: FloatArray, sources: SegmentSources | None) -> PrefixHit:
    nothing = PrefixHit(tokens=tokens, unfinished=None, arrive_in_s=np.full(len(tokens), -np.inf))
    if sources is None or sources.flying is None:
        return nothing
    unfinished = sources.flying & (sources.spans.ends[:, None] <= tokens)
    if not unfinished.any():
        return nothing
    arrive_in_s = np.maximum.reduce(sources.ready_in_s, axis=0, initial=-np.inf, where=unfinished)
    return PrefixHit(tokens=tokens, unfinished=unfinished, arrive_in_s=arrive_in_s)
