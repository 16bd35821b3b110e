"""One estimate: when would each worker complete this prefill, with what it has and what it could be sent?"""

from dataclasses import dataclass

import numpy as np

from nebula_router.core.engine_cost import EngineCosts
from nebula_router.core.lanes import Lanes, Timeline
from nebula_router.core.load_snapshot import FloatArray
from nebula_router.core.plan_question import PlanQuestion
from nebula_router.core.prefix_hit import PrefixHit, find_prefix
from nebula_router.core.queued_work import QueuedWork, whole_tokens
from nebula_router.core.reuse import PAIRS, TIME_S, TOKENS, ReuseOptions, find_reuse
from nebula_router.core.segment_sources import find_sources


@dataclass(frozen=True, slots=True)
class EngineWork:
    """The engine's share of the request without any copied segment, shape [W]."""

    loaded_tokens: FloatArray
    """Of segments that lie there."""
    step_tokens: FloatArray
    pairs: FloatArray
    load_s: FloatArray
    marginal_s: FloatArray
    """Compute and loading, step floors excluded."""


@dataclass(frozen=True, slots=True)
class WorkerEstimate:
    """One worker with its best set of copies; seconds from now."""

    num_moved: int
    """The first so many of the reusable segments are moved to the worker, where movable."""
    arrive_in_s: float
    """0 where nothing is waited for."""
    runnable_in_s: float
    """When a step may begin; not later than the arrival, since steps meet copies layer by layer."""
    engine_s: float
    completion_s: float
    score: float


@dataclass(frozen=True, slots=True)
class Estimates:
    """All workers, and all sets of copies: row r of the matrices [R + 1, W] moves the first r reusable segments."""

    costs: EngineCosts
    lanes: Lanes
    prefix: PrefixHit
    work: EngineWork
    reuse: ReuseOptions | None
    arrive_in_s: FloatArray
    """Minus infinity where nothing is waited for."""
    moved_tokens: FloatArray
    moved_s: FloatArray
    """What moving saves."""
    timeline: Timeline
    score: FloatArray
    """Shape [W]: the best row's; infinite where the worker cannot take the request."""

    def column(self, index: int) -> WorkerEstimate:
        timeline = self.timeline
        row = int(timeline.score[:, index].argmin())
        return WorkerEstimate(
            num_moved=row,
            arrive_in_s=max(0.0, self.arrive_in_s.item(row, index)),
            runnable_in_s=max(0.0, timeline.runnable_in_s.item(row, index)),
            engine_s=timeline.engine_s.item(row, index),
            completion_s=timeline.completion_s.item(row, index),
            score=timeline.score.item(row, index),
        )

    def loaded_tokens(self, index: int, num_moved: int) -> float:
        """Of segments, there or copied, whose KV is loaded."""
        return self.work.loaded_tokens.item(index) + self.moved_tokens.item(num_moved, index)

    def marginal_s(self, index: int, num_moved: int) -> float:
        return self.work.marginal_s.item(index) - self.moved_s.item(num_moved, index)

    def queued_work(self, index: int, num_moved: int) -> QueuedWork:
        work, moved_tokens, moved_pairs = self.work, self.moved_tokens.item(num_moved, index), 0.0
        if num_moved and self.reuse is not None:
            moved = self.reuse.movable[:num_moved, index]
            moved_pairs = float(self.reuse.saving[PAIRS, :num_moved, index] @ moved)
        return QueuedWork(
            step_tokens=whole_tokens(work.step_tokens.item(index) - moved_tokens),
            attention_pairs=work.pairs.item(index) - moved_pairs,
            load_s=work.load_s.item(index) + moved_tokens * self.costs.load_s_per_token.item(index),
        )


def estimate_workers(question: PlanQuestion, now_s: float) -> Estimates:
    """Completion and score of the request on every worker, with every set of copies that is worth a thought.

    Copies are considered in the order in which they can leave their sources: with the first r of them, r = 0 to R, the
    arrival rises and the work left falls, and the r with the least score is taken. Without contention on links that is
    the optimum, since with the last arrival fixed everything that arrives sooner is free.

    O(W * S), array operations only.
    """
    costs = EngineCosts.of(question.fleet, question.load.cost_factor)
    lanes = Lanes.of(question.load, question.fleet, costs.step_s)
    sources = find_sources(question, now_s) if question.settings.pic and question.layout.segments else None
    prefix = find_prefix(question, costs, sources)
    reuse = None if sources is None else find_reuse(question, costs, sources, prefix.tokens)
    work = _work_without_copies(question, costs, prefix.tokens, reuse)
    num_rows = 1 if reuse is None else 1 + len(reuse.movable)
    arrive_in_s = np.empty((num_rows, len(prefix.tokens)))
    arrive_in_s[0] = prefix.arrive_in_s
    ready_in_s = None
    if sources is not None and sources.flying is not None:
        ready_in_s = np.empty_like(arrive_in_s)
        ready_in_s[:] = prefix.arrive_in_s
    moved = np.zeros((2, num_rows, len(prefix.tokens)))
    if reuse is not None:
        np.maximum(reuse.arrive_in_s, prefix.arrive_in_s, out=arrive_in_s[1:])
        if reuse.ready_in_s is not None and ready_in_s is not None:
            np.maximum(reuse.ready_in_s, prefix.arrive_in_s, out=ready_in_s[1:])
        np.add.accumulate(reuse.saving[::TIME_S] * reuse.movable, axis=1, out=moved[:, 1:])
    moved_tokens, moved_s = moved
    timeline = lanes.timeline(
        arrive_in_s, work.step_tokens - moved_tokens, work.marginal_s - moved_s, ready_in_s=ready_in_s
    )
    return Estimates(
        costs=costs,
        lanes=lanes,
        prefix=prefix,
        work=work,
        reuse=reuse,
        arrive_in_s=arrive_in_s,
        moved_tokens=moved_tokens,
        moved_s=moved_s,
        timeline=timeline,
        score=_only_eligible(question, np.minimum.reduce(timeline.score, axis=0)),
    )


def _work_without_copies(
    question: PlanQuestion,
    costs: EngineCosts,
    prefix_tokens: FloatArray,
    reuse: ReuseOptions | None,
) -> EngineWork:
    num_tokens = question.layout.num_tokens
    reloaded = np.maximum(prefix_tokens - question.coverage.prefix_device_tokens, 0.0)
    load_s = reloaded * costs.load_s_per_token
    step_tokens = num_tokens - prefix_tokens
    pairs = step_tokens * (0.5 * (num_tokens + prefix_tokens))
    marginal_s = step_tokens * costs.per_token_s + pairs * costs.per_pair_s + load_s
    loaded_tokens = np.zeros_like(prefix_tokens)
    if reuse is not None:
        spared = np.add.reduce(reuse.saving * reuse.here, axis=1)
        loaded_tokens = spared[TOKENS]
        step_tokens = step_tokens - loaded_tokens
        pairs = pairs - spared[PAIRS]
        load_s = load_s + loaded_tokens * costs.load_s_per_token
        marginal_s = marginal_s - spared[TIME_S]
    return EngineWork(
        loaded_tokens=loaded_tokens,
        step_tokens=step_tokens,
        pairs=pairs,
        load_s=load_s,
        marginal_s=marginal_s,
    )


def _only_eligible(question: PlanQuestion, score: FloatArray) -> FloatArray:
    fleet = question.fleet
    score[(fleet.context_tokens < question.layout.num_tokens) | ~fleet.prefills] = np.inf
    if question.excluded:
        score[[worker in question.excluded for worker in fleet.workers]] = np.inf
    if question.only_target is not None:
        score[[worker.worker_id != question.only_target for worker in fleet.workers]] = np.inf
    return score
