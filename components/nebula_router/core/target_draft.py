"""The chosen target's plan while it is drawn up: a source for each segment."""

from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from nebula_protocol.plan import Source
from nebula_router.core.coverage import IN_FLIGHT, NOT_HELD
from nebula_router.core.estimator import Estimates, WorkerEstimate
from nebula_router.core.parallel_prefill import MissingSegment
from nebula_router.core.plan_question import PlanQuestion
from nebula_router.core.segment_sources import SegmentSources


@dataclass(slots=True)
class TargetDraft:
    """Columns are indices into the question's workers, segments are indices into its layout."""

    column: int
    prefix_tokens: int
    sources: list[Source]
    from_columns: list[int]
    """The other side of each copy; the target itself for what lies, is awaited or is computed there."""
    tokens_from: dict[int, int]
    """By column, what is copied from there."""


def draft_target(question: PlanQuestion, estimates: Estimates, column: int, estimate: WorkerEstimate) -> TargetDraft:
    """Sources on one worker as its estimate assumed them.

    A segment that the prefix hit covers is LOCAL: the worker prefers the prefix, and should that be gone, it may still
    have the segment. It is JOIN with the target itself while the prefix is still being computed.
    """
    prefix_tokens = int(estimates.prefix.tokens[column])
    segments = question.layout.segments if question.settings.pic else ()
    # The last token is always computed, so a segment that ends the prompt is covered one token earlier.
    covered = prefix_tokens + (prefix_tokens == question.layout.num_tokens - 1)
    sources = [Source.LOCAL if segment.end <= covered else Source.COMPUTE for segment in segments]
    draft = TargetDraft(column, prefix_tokens, sources, [column] * len(segments), {})
    reuse = estimates.reuse
    if reuse is None:
        return draft
    rows, unfinished = reuse.sources.rows, estimates.prefix.unfinished
    for index in rows[reuse.here[:, column]].tolist():
        sources[index] = Source.LOCAL
    if unfinished is not None:
        for index in rows[unfinished[:, column]].tolist():
            sources[index] = Source.JOIN
    if estimate.num_moved:
        moved = reuse.movable[: estimate.num_moved, column].nonzero()[0]
        if reuse.awaited is not None:
            own = reuse.awaited[moved, column]
            for index in rows[moved[own]].tolist():
                sources[index] = Source.JOIN
            moved = moved[~own]
        _choose_sources(question, draft, reuse.sources, moved)
    return draft


def find_missing(question: PlanQuestion, estimates: Estimates, draft: TargetDraft) -> list[MissingSegment]:
    """What the target would compute in context and a helper could compute instead, each content once."""
    fleet, costs, column = question.fleet, estimates.costs, draft.column
    recompute_tokens = float(fleet.recompute_tokens[column])
    reused_ratio = float(fleet.reused_ratio[column])
    net_s_per_token, s_per_pair = float(costs.net_s_per_token[column]), float(costs.per_pair_s[column])
    last = question.layout.num_tokens - 1
    prefix_tokens, sources = draft.prefix_tokens, draft.sources
    seen: set[bytes] = set()
    missing = []
    for index, segment in enumerate(question.layout.segments):
        # The struct's fields are read once each: this loop runs over every segment of nearly every prompt.
        if sources[index] is not Source.COMPUTE or (content := segment.segment_hash) in seen:
            continue
        seen.add(content)
        start, end = segment.start, segment.end
        size = end - start
        if end > last:
            end = last
        first = (start if start > prefix_tokens else prefix_tokens) + recompute_tokens
        if first >= end:
            continue
        tokens = (end - first) * reused_ratio
        pairs = tokens * (0.5 * (end + first))
        saved_s = tokens * net_s_per_token + pairs * s_per_pair
        if saved_s > 0:
            missing.append(MissingSegment(index, size, tokens, pairs, saved_s))
    return missing


def _choose_sources(
    question: PlanQuestion, draft: TargetDraft, sources: SegmentSources, moved: npt.NDArray[np.intp]
) -> None:
    """The holder that can send first, counting what this request asks of it already; the lowest id among equals."""
    id_order, link_s_per_token = question.fleet.id_order.tolist(), question.fleet.link_s_per_token.tolist()
    states = sources.states[moved]
    states[:, draft.column] = NOT_HELD
    rows, columns = states.nonzero()
    holders = zip(
        sources.sent_s[moved[rows], columns].tolist(), columns.tolist(), states[rows, columns].tolist(), strict=True
    )
    segments = zip(
        sources.rows[moved].tolist(),
        sources.spans.sizes[moved].tolist(),
        np.add.reduce(states != NOT_HELD, axis=1).tolist(),
        strict=True,
    )
    asked_s = [0.0] * len(id_order)
    for index, size, num_holders in segments:
        if num_holders == 1:
            _, column, state = next(holders)
        else:
            _, column, state = min(
                islice(holders, num_holders),
                key=lambda holder: (holder[0] + asked_s[holder[1]], holder[2], id_order[holder[1]]),
            )
        asked_s[column] += size * link_s_per_token[column]
        draft.sources[index] = Source.JOIN if state == IN_FLIGHT else Source.FETCH
        draft.from_columns[index] = column
        draft.tokens_from[column] = draft.tokens_from.get(column, 0) + int(size)
