"""Engines as a new request sees them: from its arrival at the head of a queue to its completion."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from nebula_router.core.fleet import Fleet
from nebula_router.core.load_snapshot import FloatArray, LoadSnapshot


@dataclass(frozen=True, slots=True)
class Timeline:
    """Elementwise over any shape that broadcasts with the lanes; seconds from now."""

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
    late_free_in_s: FloatArray
    queued_tokens: FloatArray
    co_batched: FloatArray
    max_step_tokens: FloatArray
    step_s: FloatArray
    work_price: float

    @classmethod
    def of(cls, load: LoadSnapshot, fleet: Fleet, step_s: FloatArray) -> Self:
        return cls(
            free_in_s=load.free_in_s,
            turn_in_s=load.turn_in_s,
            drained_in_s=load.drained_in_s,
            late_from_s=load.late_from_s,
            late_free_in_s=load.late_free_in_s,
            queued_tokens=load.queued_tokens,
            co_batched=load.co_batched,
            max_step_tokens=fleet.max_step_tokens,
            step_s=step_s,
            work_price=load.work_price,
        )

    def column(self, index: int) -> "Lanes":
        """One engine."""
        only = slice(index, index + 1)
        return Lanes(
            free_in_s=self.free_in_s[only],
            turn_in_s=self.turn_in_s[only],
            drained_in_s=self.drained_in_s[only],
            late_from_s=self.late_from_s[only],
            late_free_in_s=self.late_free_in_s[only],
            queued_tokens=self.queued_tokens[only],
            co_batched=self.co_batched[only],
            max_step_tokens=self.max_step_tokens[only],
            step_s=self.step_s[only],
            work_price=self.work_price,
        )

    def timeline(self, arrive_in_s: FloatArray, step_tokens: FloatArray, marginal_s: FloatArray) -> Timeline:
        """From the arrival of the last copy (minus infinity without copies) and the engine's work to the completion.

        completion = start + step floors + marginal time. A request that is runnable in time shares the last step of
        those in front of it, and the floor of that step. One whose copies come later does not hold the engine: it
        starts when they are there and the engine is done with those in front, and with those that waited longer for
        theirs.

        score = completion + (price + co-batched requests) * marginal time. Those that share its step wait for its work;
        what it costs the requests to come is the price of engine time (`WorkPrice`). Step floors are not charged: on an
        engine that others wait for, the next step comes with or without this request.
        """
        in_turn = arrive_in_s <= self.turn_in_s
        engine_free_s = np.where(arrive_in_s >= self.late_from_s, self.late_free_in_s, self.drained_in_s)
        start_in_s = np.where(in_turn, self.free_in_s, np.maximum(arrive_in_s, engine_free_s))
        num_steps = np.ceil((in_turn * self.queued_tokens + step_tokens) / self.max_step_tokens)
        engine_s = num_steps * self.step_s + marginal_s
        completion_s = start_in_s + engine_s
        score = completion_s + (self.work_price + in_turn * self.co_batched) * marginal_s
        return Timeline(start_in_s=start_in_s, engine_s=engine_s, completion_s=completion_s, score=score)
