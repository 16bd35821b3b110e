"""Engines as a new request sees them: from its arrival at the head of a queue to its completion."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from nebula_router.core.fleet import Fleet
from nebula_router.core.load_snapshot import FloatArray, LoadSnapshot


@dataclass(frozen=True, slots=True)
class Timeline:
    """Elementwise over any shape that broadcasts with the lanes; seconds from now."""

    runnable_in_s: FloatArray
    """When a step may begin: minus infinity where nothing is waited for."""
    start_in_s: FloatArray
    engine_s: FloatArray
    """Step floors and marginal time, from start to completion."""
    completion_s: FloatArray
    score: FloatArray
    """The completion, and what the request costs others."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Shape [W] (or [1] for a single engine)."""

    free_in_s: FloatArray
    turn_in_s: FloatArray
    drained_in_s: FloatArray
    late_from_s: FloatArray
    num_late: FloatArray
    late_free_in_s: FloatArray
    queued_tokens: FloatArray
    co_batched: FloatArray
    max_step_tokens: FloatArray
    overlap_ratio: FloatArray
    link_floor_s: FloatArray
    step_s: FloatArray
    work_price: float
    some_late: bool
    """Whether there are late requests anywhere."""

    @classmethod
    def of(cls, load: LoadSnapshot, fleet: Fleet, step_s: FloatArray) -> Self:
        return cls(
            free_in_s=load.free_in_s,
            turn_in_s=load.turn_in_s,
            drained_in_s=load.drained_in_s,
            late_from_s=load.late_from_s,
            num_late=load.num_late,
            late_free_in_s=load.late_free_in_s,
            queued_tokens=load.queued_tokens,
            co_batched=load.co_batched,
            max_step_tokens=fleet.max_step_tokens,
            overlap_ratio=fleet.overlap_ratio,
            link_floor_s=fleet.link_floor_s,
            step_s=step_s,
            work_price=load.work_price,
            some_late=bool(load.num_late.any()),
        )

    def column(self, index: int) -> "Lanes":
        """One engine."""
        only = slice(index, index + 1)
        return Lanes(
            free_in_s=self.free_in_s[only],
            turn_in_s=self.turn_in_s[only],
            drained_in_s=self.drained_in_s[only],
            late_from_s=self.late_from_s[only],
            num_late=self.num_late[only],
            late_free_in_s=self.late_free_in_s[only],
            queued_tokens=self.queued_tokens[only],
            co_batched=self.co_batched[only],
            max_step_tokens=self.max_step_tokens[only],
            overlap_ratio=self.overlap_ratio[only],
            link_floor_s=self.link_floor_s[only],
            step_s=self.step_s[only],
            work_price=self.work_price,
            some_late=self.some_late,
        )

    def timeline(
        self,
        arrive_in_s: FloatArray,
        step_tokens: FloatArray,
        marginal_s: FloatArray,
        *,
        ready_in_s: FloatArray | None = None,
    ) -> Timeline:
        """From the arrival of the last copy (minus infinity without copies) and the engine's work to the completion.

        A step meets copies layer by layer: the last layer of the last copy must be there when the step comes to it, and
        the first one, which travels for the link's floor, when it begins. What the engine itself computes for others
        (`ready_in_s`) must be there before.

        completion = start + step floors + marginal time. A request that is runnable in time shares the last step of
        those in front of it, and the floor of that step. One whose copies come later does not hold the engine: it
        starts when they are there and the engine is done with those in front, and with those that waited longer for
        theirs.

        score = completion + (price + co-batched requests) * marginal time. Those that share its step wait for its work;
        what it costs the requests to come is the price of engine time (`WorkPrice`). Those whose copies come while it
        runs wait for the rest of it. Step floors are not charged: on an engine that others wait for, the next step
        comes with or without this request.
        """
        runnable_in_s = arrive_in_s - self.overlap_ratio * (marginal_s + self.step_s)
        np.maximum(runnable_in_s, self.link_floor_s, out=runnable_in_s)
        np.minimum(runnable_in_s, arrive_in_s, out=runnable_in_s)
        if ready_in_s is not None:
            np.maximum(runnable_in_s, ready_in_s, out=runnable_in_s)
        in_turn = runnable_in_s <= self.turn_in_s
        engine_free_s = np.where(runnable_in_s >= self.late_from_s, self.late_free_in_s, self.drained_in_s)
        start_in_s = np.where(in_turn, self.free_in_s, np.maximum(runnable_in_s, engine_free_s))
        num_steps = np.ceil((in_turn * self.queued_tokens + step_tokens) / self.max_step_tokens)
        engine_s = num_steps * self.step_s + marginal_s
        completion_s = start_in_s + engine_s
        score = completion_s + (self.work_price + in_turn * self.co_batched) * marginal_s
        if self.some_late:
            delay_s = np.maximum(completion_s - self.late_from_s, 0.0)
            delay_s *= (start_in_s < self.late_from_s) * self.num_late
            score += delay_s
        return Timeline(
            runnable_in_s=runnable_in_s,
            start_in_s=start_in_s,
            engine_s=engine_s,
            completion_s=completion_s,
            score=score,
        )
