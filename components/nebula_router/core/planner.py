"""Where a request is prefilled, and where each of its segments comes from: the smallest estimate decides."""

import numpy as np

from nebula_router.core.estimator import Estimates, estimate_workers
from nebula_router.core.placement import Placement, place_with_helpers, place_without_helpers
from nebula_router.core.plan_answer import PlanAnswer
from nebula_router.core.plan_question import PlanQuestion
from nebula_router.core.plan_writer import write_answer


def plan_prefill(question: PlanQuestion, now_s: float) -> PlanAnswer | None:
    """The plan with the least score; None when no worker can take the prompt.

    Pure and deterministic, and the order of the workers does not matter. Every worker is estimated exactly (array
    operations over all of them); helpers are then considered for the best of them and for the one that is free first,
    since a cold prompt may be best served by many idle workers where no single one is the best.
    """
    estimates = estimate_workers(question, now_s)
    columns = rank_workers(question, estimates)
    if not columns:
        return None
    settings = question.settings
    if settings.pic and settings.parallel_prefill and settings.max_helpers:
        placement = _place_best(question, estimates, columns[0])
    else:
        placement = place_without_helpers(question, estimates, columns[0], estimates.column(columns[0]))
    return write_answer(question, estimates, placement, columns, now_s)


def rank_workers(question: PlanQuestion, estimates: Estimates) -> list[int]:
    """Columns of the workers that can take the prompt, best first.

    Scores closer than the estimate's own error are equal; then the worker that was given least work lately comes first.
    So work and cache contents spread where nothing tells workers apart, and a fit that is a little off for one worker
    does not make it everybody's choice.
    """
    score = estimates.score
    columns: list[int] = np.lexsort((question.fleet.id_order, score))[: np.count_nonzero(score < np.inf)].tolist()
    if not columns:
        return columns
    best = columns[0]
    completion_s = estimates.timeline.completion_s[estimates.timeline.score[:, best].argmin(), best]
    num_equal = np.count_nonzero(score <= score[best] + question.settings.indifference_ratio * completion_s)
    if num_equal > 1:
        recent_s = question.load.recent_work_s
        first = min(columns[:num_equal], key=lambda column: float(recent_s[column]))
        columns.remove(first)
        columns.insert(0, first)
    return columns


def _place_best(question: PlanQuestion, estimates: Estimates, best: int) -> Placement:
    """The best placement with helpers where it beats the best one without by enough, else that one."""
    placement = place_without_helpers(question, estimates, best, estimates.column(best))
    limit = placement.score - question.settings.parallel_gain_ratio * placement.completion_s
    helped = place_with_helpers(question, estimates, placement, limit)
    free_in_s = question.load.free_in_s
    if (free_in_s < free_in_s[best]).any():
        freest = int(np.lexsort((question.fleet.id_order, free_in_s, estimates.score == np.inf))[0])
        base = place_without_helpers(question, estimates, freest, estimates.column(freest))
        other = place_with_helpers(question, estimates, base, limit if helped is None else helped.score)
        helped = other or helped
    return helped or placement
