"""What reusing each segment would save on each worker, and when it could be there."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nebula_router.core.coverage import IN_FLIGHT, NOT_HELD
from nebula_router.core.engine_cost import EngineCosts
from nebula_router.core.load_snapshot import FloatArray
from nebula_router.core.plan_question import PlanQuestion
from nebula_router.core.segment_spans import SegmentSpans

StateArray = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]

_READY_IN_S_BY_STATE = np.array([np.inf, 0.0, 0.0, np.nan])
"""By NOT_HELD, STORED, UNCONFIRMED, IN_FLIGHT; the last depends on when it is ready."""


TOKENS, PAIRS, TIME_S = 0, 1, 2
"""Planes of a saving, shape [3, R, W]: tokens and attention pairs that loading a segment spares the engine, and the net
time. One array, so that masking and summing them is one operation."""


@dataclass(frozen=True, slots=True)
class ReuseOptions:
    """R rows: segments that somebody holds, in the order in which copies could leave their sources."""

    rows: npt.NDArray[np.intp]
    """Shape [R]: indices of segments."""
    spans: SegmentSpans
    """Of these rows."""
    states: StateArray
    """Shape [R, W]; what this request may not use is NOT_HELD."""
    sent_s: FloatArray
    """Shape [R, W]: when a copy could have left the worker; infinite where it does not hold the segment."""
    saving: FloatArray
    """Shape [3, R, W]."""
    here: BoolArray
    """Shape [R, W]: the worker has it, and loading it beats computing it."""
    movable: BoolArray
    """Shape [R, W]: it can be had from elsewhere, or will be here later, and loading it beats computing it."""
    flying_here: BoolArray
    """Shape [R, W]: it is being computed or fetched at the worker itself, and that is sooner than a copy."""
    behind: BoolArray
    """Shape [R, W]: covered by the prefix that the worker is expected to have, and still being computed there. The
    prefix is of use only when that is done: not in the same step, and least of all before the other request's turn."""
    prefix_in_s: FloatArray
    """Shape [W]: when the last of those is there; minus infinity for none."""
    prefix_now_tokens: FloatArray
    """Shape [W]: where the first of those begins that are not there by the request's turn; infinite for none."""
    arrive_in_s: FloatArray
    """Shape [R, W]: when the movable ones of rows 0 to r have arrived, if all are moved; minus infinity for none."""


def compute_saving(
    question: PlanQuestion, costs: EngineCosts, spans: SegmentSpans, prefix_tokens: FloatArray
) -> FloatArray:
    """What loading saves over computing in context, spans [R] on workers [W].

    Spared are a segment's tokens behind the prefix hit but for the first k of them (LegoLink), or of them a share
    1 - recompute_ratio (CacheBlend). A token at position p costs a + b * (p + 1/2), so a run of n around the middle m
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
    question: PlanQuestion, costs: EngineCosts, spans: SegmentSpans, prefix_tokens: FloatArray, now_s: float
) -> ReuseOptions | None:
    """None where no worker holds any of the segments."""
    states = _visible_states(question)
    num_rows = int(np.count_nonzero(np.logical_or.reduce(states, axis=1)))
    if not num_rows:
        return None
    ready_in_s = _READY_IN_S_BY_STATE[states]
    flying = (states == IN_FLIGHT).nonzero()
    if len(flying[0]):
        # What is overdue by x is expected to take x more, as with the steps of engines.
        ready_in_s[flying] = np.abs(question.coverage.segment_ready_at_s[flying] - now_s)
    begin_s = np.maximum(ready_in_s, question.load.link_out_busy_s)
    # Sources that can send at the same time: first what is most expensive to compute, which is what stands last.
    # Those that nobody holds begin never, and are cut off.
    rows = np.lexsort((-spans.ends, np.minimum.reduce(begin_s, axis=1)))[:num_rows]
    spans = spans.take(rows)
    return _options(
        question,
        rows,
        spans,
        costs,
        prefix_tokens,
        states[rows],
        ready_in_s[rows],
        begin_s[rows],
    )


def _options(
    question: PlanQuestion,
    rows: npt.NDArray[np.intp],
    spans: SegmentSpans,
    costs: EngineCosts,
    prefix_tokens: FloatArray,
    states: StateArray,
    ready_in_s: FloatArray,
    begin_s: FloatArray,
) -> ReuseOptions:
    """Adds when copies arrive: a link passes one after another, each not before it has left its source.

    With c the end of a copy on the target's link, c[r] = max(c[r - 1] + d[r], left[r]); cumulated, that is
    c[r] = D[r] + max over i <= r of (left[i] - D[i]) with D the running sum of the durations d.
    """
    fleet = question.fleet
    duration_s = spans.sizes[:, None] * fleet.link_s_per_token
    sent_s = begin_s + duration_s
    if question.settings.remote_reuse:
        left_s = np.minimum.reduce(sent_s, axis=1)[:, None]
    else:
        left_s = np.full((len(rows), 1), np.inf)
    saving = compute_saving(question, costs, spans, prefix_tokens)
    pays = saving[TIME_S] > 0
    flying = states == IN_FLIGHT
    here = pays & ((ready_in_s == 0) > flying)
    ends_s = np.maximum(left_s, question.load.link_in_busy_s + duration_s)
    behind = np.zeros_like(flying)
    if flying.any():
        behind = flying & (spans.ends[:, None] <= prefix_tokens)
        flying &= ready_in_s <= left_s + fleet.link_floor_s
        np.copyto(ends_s, ready_in_s - fleet.link_floor_s, where=flying)
    movable = (pays & (ends_s < np.inf)) > here
    np.copyto(ends_s, -np.inf, where=~movable)
    total_s = np.add.accumulate(duration_s * (movable > flying), axis=0)
    ends_s -= total_s
    arrive_in_s = np.maximum.accumulate(ends_s, axis=0)
    arrive_in_s += total_s + fleet.link_floor_s
    return ReuseOptions(
        rows=rows,
        spans=spans,
        states=states,
        sent_s=sent_s,
        saving=saving,
        here=here,
        movable=movable,
        flying_here=flying,
        behind=behind,
        prefix_in_s=np.maximum.reduce(ready_in_s, axis=0, initial=-np.inf, where=behind),
        prefix_now_tokens=np.minimum.reduce(
            np.broadcast_to(spans.starts[:, None], behind.shape),
            axis=0,
            initial=np.inf,
            where=behind & (ready_in_s > question.load.turn_in_s),
        ),
        arrive_in_s=arrive_in_s,
    )


def _visible_states(question: PlanQuestion) -> StateArray:
    """The coverage's states without what this request may not use, shape [S, W]."""
    states = question.coverage.segment_states
    if question.settings.join and not question.excluded:
        return states
    states = states.copy()
    if not question.settings.join:
        states[states == IN_FLIGHT] = NOT_HELD
    for column, worker in enumerate(question.fleet.workers):
        if worker in question.excluded:
            states[:, column] = NOT_HELD
    return states
