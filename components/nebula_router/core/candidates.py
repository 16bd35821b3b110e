"""The best workers of a decision as a reader is told of them: what each had, and when it would have been done."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nebula_protocol.events import Candidate
from nebula_protocol.plan import Estimate
from nebula_router.core.estimator import Estimates
from nebula_router.core.placement import Placement
from nebula_router.core.plan_question import PlanQuestion

IndexArray = npt.NDArray[np.intp]


def tell_candidates(
    question: PlanQuestion, estimates: Estimates, placement: Placement, columns: Sequence[int]
) -> tuple[Candidate, ...]:
    """The chosen worker first, then the best of `columns`, as many as the settings say.

    All at once, since the request waits for it: O(candidates * segments), array operations only.
    """
    limit, chosen = question.settings.told_candidates, placement.draft.column
    if not limit:
        return ()
    ranked = [chosen, *(column for column in columns[:limit] if column != chosen)][:limit]
    at = np.array(ranked)
    timeline, workers = estimates.timeline, question.fleet.workers
    rows: IndexArray = timeline.score[:, at].argmin(axis=0)
    copied, here = _segment_tokens(question, estimates, at, rows)
    columns_told = zip(
        ranked,
        question.load.free_in_s[at].tolist(),
        estimates.arrive_in_s[rows, at].tolist(),
        timeline.engine_s[rows, at].tolist(),
        timeline.completion_s[rows, at].tolist(),
        estimates.prefix.tokens[at].tolist(),
        here,
        copied,
        timeline.score[rows, at].tolist(),
        strict=True,
    )
    told = []
    for column, free_in_s, arrive_in_s, engine_s, completion_s, prefix, own, brought, score_s in columns_told:
        if column == chosen:
            # With its helpers, if it has some.
            arrive_in_s, engine_s = placement.arrive_in_s, placement.engine_s
            completion_s, score_s = placement.completion_s, placement.score
        told.append(
            Candidate(
                worker=workers[column],
                estimate=Estimate(
                    free_in_s=free_in_s,
                    arrive_in_s=arrive_in_s if arrive_in_s > 0.0 else 0.0,
                    compute_s=engine_s,
                    completion_s=completion_s,
                ),
                prefix_hit_tokens=int(prefix),
                segment_hit_tokens=round(own + brought),
                copied_tokens=round(brought),
                score_s=score_s,
            )
        )
    return tuple(told)


def _segment_tokens(
    question: PlanQuestion, estimates: Estimates, at: IndexArray, rows: IndexArray
) -> tuple[list[float], list[float]]:
    """Behind each worker's prefix hit: tokens of segments that would be brought there, and of those that lie there.

    Recomputed tokens count; what helpers compute does not.
    """
    reuse, fleet = estimates.reuse, question.fleet
    if reuse is None:
        nothing = [0.0] * len(at)
        return nothing, nothing
    reused_ratio = fleet.reused_ratio[at]
    # A worker that reuses nothing has nothing in any row.
    reused_ratio[reused_ratio == 0.0] = np.inf
    num_rows = len(reuse.here)
    reused = np.empty((2, num_rows, len(at)), dtype=np.bool_)
    np.less(np.arange(num_rows)[:, None], rows, out=reused[0])
    reused[0] &= reuse.movable[:, at]
    reused[1] = reuse.here[:, at]
    tokens = np.add.reduce(reused, axis=1) * fleet.recompute_tokens[at]
    tokens[0] += estimates.moved_tokens[rows, at] / reused_ratio
    tokens[1] += estimates.work.loaded_tokens[at] / reused_ratio
    brought, own = tokens.tolist()
    return brought, own
