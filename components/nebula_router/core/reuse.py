"""What reusing each segment would save on each worker, and when it could be there."""

from dataclasses import dataclass

import numpy as np

from nebula_router.core.engine_cost import EngineCosts
from nebula_router.core.load_snapshot import FloatArray
from nebula_router.core.plan_question import PlanQuestion
from nebula_router.core.segment_sources import BoolArray, SegmentSources
from nebula_router.core.segment_spans import SegmentSpans

TOKENS, PAIRS, TIME_S = 0, 1, 2
"""Planes of a saving, shape [3, R, W]: tokens and attention pairs that loading a segment spares the engine, and the net
time. One array, so that masking and summing them is one operation."""


@dataclass(frozen=True, slots=True)
class ReuseOptions:
    """Shape [R, W], rows as in `sources`."""

    sources: SegmentSources
    saving: FloatArray
    """Shape [3, R, W]."""
    here: BoolArray
    """The worker has it, and loading it beats computing it."""
    movable: BoolArray
    """It can be had from elsewhere, or will be here later, and loading it beats computing it."""
    awaited: BoolArray | None
    """It is being computed or fetched at the worker itself, and that is sooner than a copy; None for none."""
    arrive_in_s: FloatArray
    """When the movable ones of rows 0 to r have arrived, if all are moved; minus infinity for none."""
    ready_in_s: FloatArray | None
    """The same of the awaited ones alone; None for none."""


def compute_saving(
    question: PlanQuestion, costs: EngineCosts, spans: SegmentSpans, prefix_tokens: FloatArray
) -> FloatArray:
    """What loading saves over computing in context, spans [R] on workers [W].

    Spared are a segment's tokens behind the prefix hit but for the first k of them (LegoLink), or of them a share
    1 - ratio - probe (CacheBlend). A token at position p costs a + b * (p + 1/2), so a run of n around the middle m
    costs n * (a + b * m).
    """
    fleet, ends = question.fleet, spans.ends[:, None]
    saving = np.empty((3, len(spans.ends), len(prefix_tokens)))
    tokens, pairs, time_s = saving
    first = np.maximum(spans.starts[:, None], prefix_tokens)
    first += fleet.recompute_tokens
    np.minimum(first, ends, out=first)
    np.multiply(ends - first, fleet.reused_ratio, out=tokens)
    first += ends
    first *= 0.5
    np.multiply(tokens, first, out=pairs)
    np.multiply(tokens, costs.net_s_per_token, out=time_s)
    time_s += pairs * costs.per_pair_s
    return saving


def find_reuse(
    question: PlanQuestion, costs: EngineCosts, sources: SegmentSources, prefix_tokens: FloatArray
) -> ReuseOptions:
    """What each worker has, and what could be brought to it.

    A link passes copies one after another, each not before it has left its source. With c the end of a copy on the
    target's link, c[r] = max(c[r - 1] + d[r], left[r]); cumulated, that is
    c[r] = D[r] + max over i <= r of (left[i] - D[i]) with D the running sum of the durations d.
    """
    fleet, flying, ready_in_s = question.fleet, sources.flying, sources.ready_in_s
    saving = compute_saving(question, costs, sources.spans, prefix_tokens)
    pays = saving[TIME_S] > 0
    here = pays & (ready_in_s == 0)
    if question.settings.remote_reuse:
        left_s = np.minimum.reduce(sources.sent_s, axis=1)[:, None]
    else:
        left_s = np.full((len(sources.rows), 1), np.inf)
    duration_s = sources.spans.sizes[:, None] * fleet.link_s_per_token
    ends_s = np.maximum(left_s, question.load.link_in_busy_s + duration_s)
    awaited = awaited_in_s = None
    if flying is not None:
        here &= ~flying
        awaited = flying & (ready_in_s <= left_s + fleet.link_floor_s)
        np.copyto(ends_s, ready_in_s - fleet.link_floor_s, where=awaited)
    movable = (pays & (ends_s < np.inf)) > here
    if awaited is not None:
        awaited_in_s = np.maximum.accumulate(np.where(awaited & movable, ready_in_s, -np.inf), axis=0)
    np.copyto(ends_s, -np.inf, where=~movable)
    duration_s *= movable if awaited is None else movable > awaited
    total_s = np.add.accumulate(duration_s, axis=0)
    ends_s -= total_s
    arrive_in_s = np.maximum.accumulate(ends_s, axis=0)
    total_s += fleet.link_floor_s
    arrive_in_s += total_s
    return ReuseOptions(
        sources=sources,
        saving=saving,
        here=here,
        movable=movable,
        awaited=awaited,
        arrive_in_s=arrive_in_s,
        ready_in_s=awaited_in_s,
    )
