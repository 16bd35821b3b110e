"""Who has each of a prompt's segments, and when it could send them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nebula_router.core.coverage import IN_FLIGHT, NOT_HELD
from nebula_router.core.load_snapshot import FloatArray
from nebula_router.core.plan_question import PlanQuestion
from nebula_router.core.segment_spans import SegmentSpans

StateArray = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]

_READY_IN_S_BY_STATE = np.array([np.inf, 0.0, 0.0, np.nan])
"""By NOT_HELD, STORED, UNCONFIRMED, IN_FLIGHT; the last depends on when it is ready."""


@dataclass(frozen=True, slots=True)
class SegmentSources:
    """R rows: segments that somebody holds, in the order in which copies could leave their holders."""

    rows: npt.NDArray[np.intp]
    """Shape [R]: indices of segments."""
    spans: SegmentSpans
    """Of these rows."""
    states: StateArray
    """Shape [R, W]; what this request may not use is NOT_HELD."""
    flying: BoolArray | None
    """Shape [R, W]: IN_FLIGHT; None for none."""
    ready_in_s: FloatArray
    """Shape [R, W]: 0 where the worker has it, infinite where it does not hold it."""
    sent_s: FloatArray
    """Shape [R, W]: when a copy could have left the worker; infinite where it does not hold the segment."""


def find_sources(question: PlanQuestion, now_s: float) -> SegmentSources | None:
    """None where no worker holds any of the segments."""
    states = _visible_states(question)
    num_rows = int(np.count_nonzero(np.logical_or.reduce(states, axis=1)))
    if not num_rows:
        return None
    ready_in_s = _READY_IN_S_BY_STATE[states]
    flying = states == IN_FLIGHT
    at = flying.nonzero()
    is_any_flying = len(at[0]) > 0
    if is_any_flying:
        # What is overdue by x is expected to take x more, as with the steps of engines.
        ready_in_s[at] = np.abs(question.coverage.segment_ready_at_s[at] - now_s)
    begin_s = np.maximum(ready_in_s, question.load.link_out_busy_s)
    spans = SegmentSpans.of(question.layout)
    # Holders that can send at the same time: first what is most expensive to compute, which is what stands last.
    # Those that nobody holds begin never, and are cut off.
    rows = np.lexsort((-spans.ends, np.minimum.reduce(begin_s, axis=1)))[:num_rows]
    spans = spans.take(rows)
    sizes_s = spans.sizes[:, None] * question.fleet.link_s_per_token
    sent_s = begin_s[rows] + sizes_s
    if is_any_flying:
        # What is being computed leaves layer by layer meanwhile: only the last is sent when it is ready.
        last_s = ready_in_s[rows] + sizes_s * (1.0 - question.fleet.overlap_ratio)
        free_s = question.load.link_out_busy_s + sizes_s
        np.copyto(sent_s, np.maximum(last_s, free_s), where=flying[rows])
    return SegmentSources(
        rows=rows,
        spans=spans,
        states=states[rows],
        flying=flying[rows] if is_any_flying else None,
        ready_in_s=ready_in_s[rows],
        sent_s=sent_s,
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
