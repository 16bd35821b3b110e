"""One way to serve a request: a target, a source for each segment, and what that comes to."""

from dataclasses import dataclass

import numpy as np

from nebula_router.core.estimator import Estimates, WorkerEstimate
from nebula_router.core.parallel_prefill import (
    HelperCost,
    Share,
    longest_first,
    share_out,
    spread,
)
from nebula_router.core.plan_question import PlanQuestion
from nebula_router.core.queued_work import QueuedWork, whole_tokens
from nebula_router.core.target_draft import TargetDraft, draft_target, find_missing


@dataclass(frozen=True, slots=True)
class Placement:
    """Times are seconds from now."""

    draft: TargetDraft
    base: WorkerEstimate
    """Without helpers."""
    shares: tuple[Share, ...]
    """What helpers compute, if any."""
    work: QueuedWork
    arrive_in_s: float
    runnable_in_s: float
    engine_s: float
    completion_s: float
    score: float


def place_without_helpers(
    question: PlanQuestion, estimates: Estimates, column: int, estimate: WorkerEstimate
) -> Placement:
    return Placement(
        draft=draft_target(question, estimates, column, estimate),
        base=estimate,
        shares=(),
        work=estimates.queued_work(column, estimate.num_moved),
        arrive_in_s=estimate.arrive_in_s,
        runnable_in_s=estimate.runnable_in_s,
        engine_s=estimate.engine_s,
        completion_s=estimate.completion_s,
        score=estimate.score,
    )


def place_with_helpers(question: PlanQuestion, estimates: Estimates, base: Placement, limit: float) -> Placement | None:
    """The best way to give some of the base's missing segments to helpers; None where no score is under `limit`.

    A target cannot compute while it waits, so one helper that takes one segment often costs more than it brings, while
    many together pay. Therefore all ways are compared at once: the longest 1, 2, ... missing segments, spread over the
    helpers that could begin first. Their engine time is charged at the price that it has for others.
    """
    column, fleet = base.draft.column, question.fleet
    marginal_s = estimates.marginal_s(column, base.base.num_moved)
    if not _may_pay(question, estimates, base, marginal_s, limit):
        return None
    missing = find_missing(question, estimates, base.draft)
    saved_s = sum(segment.saved_s for segment in missing)
    if not missing or not _may_pay(question, estimates, base, saved_s, limit):
        return None
    ordered, helpers = longest_first(missing), find_helpers(question, estimates, column)
    if not helpers:
        return None
    ways = spread(ordered, helpers)
    num_tokens = np.add.accumulate([segment.size for segment in ordered])
    saved_tokens = np.add.accumulate([segment.saved_tokens for segment in ordered])
    # The helpers' layers share the target's link, and the last ones leave when the helpers are done.
    bytes_s = num_tokens * fleet.link_s_per_token[column]
    sent_s = np.maximum(np.array(ways.done_s) + bytes_s * (1.0 - fleet.overlap_ratio[column]), bytes_s)
    arrive_in_s = np.maximum(base.arrive_in_s, sent_s + fleet.link_floor_s[column])
    timeline = estimates.lanes.column(column).timeline(
        arrive_in_s,
        base.work.step_tokens - saved_tokens,
        marginal_s - np.add.accumulate([segment.saved_s for segment in ordered]),
    )
    score = timeline.score + np.array(ways.cost_to_others_s)
    best = int(score.argmin())
    if score[best] >= limit:
        return None
    given = ordered[: best + 1]
    saved_best = float(saved_tokens[best])
    shares = share_out(given, ways.positions, helpers)
    return Placement(
        draft=base.draft,
        base=base.base,
        shares=tuple(share for share in shares if share.segment_indices),
        work=QueuedWork(
            step_tokens=whole_tokens(base.work.step_tokens - saved_best),
            attention_pairs=base.work.attention_pairs - sum(segment.saved_pairs for segment in given),
            load_s=base.work.load_s + saved_best * float(fleet.load_s_per_token[column]),
        ),
        arrive_in_s=float(arrive_in_s[best]),
        runnable_in_s=max(0.0, float(timeline.runnable_in_s[best])),
        engine_s=float(timeline.engine_s[best]),
        completion_s=float(timeline.completion_s[best]),
        score=float(score[best]),
    )


def _may_pay(question: PlanQuestion, estimates: Estimates, base: Placement, saved_s: float, limit: float) -> bool:
    """Whether helpers that save so much could reach the limit: a bound that settles most cases at once."""
    begin_s = float(np.minimum.reduce(question.load.free_in_s + estimates.costs.step_s))
    column, start_s = base.draft.column, base.completion_s - base.engine_s
    step_s = float(estimates.costs.step_s[column])
    left_s = max(step_s, base.engine_s - saved_s - step_s)
    return max(start_s + left_s, begin_s + (1.0 - float(question.fleet.overlap_ratio[column])) * left_s) < limit


def find_helpers(question: PlanQuestion, estimates: Estimates, target: int) -> list[HelperCost]:
    """Those that could begin first, at most `max_helpers`; the lowest ids among equals."""
    fleet, load, costs = question.fleet, question.load, estimates.costs
    possible = fleet.prefills & fleet.reuses_segments
    begin_s = np.where(possible, load.late_free_in_s + costs.step_s, np.inf)
    helpers: list[HelperCost] = []
    for column in np.lexsort((fleet.id_order, begin_s)).tolist():
        if len(helpers) == question.settings.max_helpers or not possible[column]:
            break
        if column != target and fleet.workers[column] not in question.excluded:
            helpers.append(
                HelperCost(
                    column=column,
                    begin_s=float(begin_s[column]),
                    opening_s=float(costs.step_s[column]),
                    per_token_s=float(costs.per_token_s[column]),
                    per_pair_s=float(costs.per_pair_s[column]),
                    link_busy_s=float(load.link_out_busy_s[column]),
                    weight=load.work_price + float(load.co_batched[column]),
                )
            )
    return helpers
