"""A shadow of one engine's queue: what a request that is queued now would wait for."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from nebula_protocol.ids import RequestId


@dataclass(slots=True, eq=False)
class _Outstanding:
    request_id: RequestId
    tokens_left: int
    marginal_left_s: float
    runnable_at_s: float

    def take(self, num_tokens: int) -> float:
        """Removes tokens and their share of the time; returns that share."""
        share_s = self.marginal_left_s * (num_tokens / self.tokens_left)
        self.tokens_left -= num_tokens
        self.marginal_left_s -= share_s
        return share_s


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """Stays true until something happens or `stale_at_s` passes. Spans count from the end of the running step."""

    step_ends_at_s: float | None
    """None when the engine idles."""
    queued_s: float
    """Marginal time of those in front of a request that is runnable at once, running step excluded."""
    queued_tokens: int
    co_batched: int
    """How many of those would share their step with a new request, and so wait for its work too."""
    turn_s: float
    """Until the step begins that the last of those in front take part in: a request that is runnable by then shares
    it."""
    drained_s: float
    """Until all of those in front are served without the new request: `queued_s` and the floors of their steps."""
    late_from_at_s: float
    """When the first of those becomes runnable that still wait for remote segments; infinite without any."""
    num_late: int
    """How many those are."""
    late_clear_at_s: float
    """When all of those are served too; minus infinity without any."""
    stale_at_s: float


class ShadowEngine:
    """Replays an engine that batches by iteration: first come first served, in chunks, a token budget a step.

    The router sees an engine only through receipts. Between them this shadow forms steps as the engine would: a step
    takes what has begun and what is runnable, oldest first, up to the budget, and lasts one step floor plus the
    marginal times. A step that should complete somebody's prefill is not over before a receipt says so, however long
    that takes: the shadow never runs ahead of the engine, and a receipt, which can only come at the end of a step,
    starts the next one. So errors of the estimate do not add up over steps. Each call is O(requests outstanding here).
    """

    def __init__(self, *, step_s: float, max_step_tokens: int) -> None:
        self.set_limits(step_s=step_s, max_step_tokens=max_step_tokens)
        self._queue: list[_Outstanding] = []
        self._step: list[tuple[_Outstanding, int]] = []
        self._step_starts_at_s = -inf
        self._step_ends_at_s: float | None = None
        self._step_completes = False

    def set_limits(self, *, step_s: float, max_step_tokens: int) -> None:
        """The floor and the token budget of steps from the next one on."""
        self._step_s = step_s
        self._max_step_tokens = max_step_tokens

    @property
    def num_outstanding(self) -> int:
        return len(self._queue)

    def add(
        self, request_id: RequestId, *, step_tokens: int, marginal_s: float, runnable_at_s: float, now_s: float
    ) -> None:
        self.advance(now_s)
        self._queue.append(_Outstanding(request_id, max(1, step_tokens), marginal_s, runnable_at_s))
        if self._step_ends_at_s is None:
            self._form_step(now_s)

    def end_step(self, request_id: RequestId, now_s: float) -> None:
        """The engine has delivered this request, so a step has just ended.

        That is the step that the shadow is in, unless it is less than half through: then this is one more receipt of
        the step before. Others that the shadow had in the same step keep their work until their own receipts come,
        normally at the same moment: that they were really in that step is only an assumption.
        """
        self.advance(now_s)
        started_at_s = now_s
        if self._step_ends_at_s is not None and now_s - self._step_starts_at_s < self._step_ends_at_s - now_s:
            started_at_s = self._step_starts_at_s
            self._step = []
        self._close_step(completed=request_id)
        self._queue = [entry for entry in self._queue if entry.request_id != request_id]
        self._form_step(started_at_s)

    def drop(self, request_id: RequestId, now_s: float) -> None:
        """The request is gone without a result; a step that carries others goes on."""
        self.advance(now_s)
        self._queue = [entry for entry in self._queue if entry.request_id != request_id]
        self._step = [(entry, taken) for entry, taken in self._step if entry.request_id != request_id]
        self._step_completes = any(taken == entry.tokens_left for entry, taken in self._step)
        if self._step_ends_at_s is not None and not self._step:
            self._form_step(now_s)

    def advance(self, now_s: float) -> None:
        """Lets steps that complete nobody end by the clock, and starts those whose segments have arrived."""
        while True:
            if self._step_ends_at_s is not None:
                if self._step_completes or self._step_ends_at_s > now_s:
                    return
                ended_at_s = self._step_ends_at_s
                self._close_step(completed=None)
                self._form_step(ended_at_s)
            else:
                next_s = min((entry.runnable_at_s for entry in self._queue), default=inf)
                if next_s > now_s:
                    return
                self._form_step(next_s)

    def summary(self, now_s: float) -> QueueSummary:
        """Valid from `now_s`, to which it advances, on."""
        self.advance(now_s)
        starts_at_s = now_s if self._step_ends_at_s is None else max(self._step_ends_at_s, now_s)
        taken = {id(entry): num_tokens for entry, num_tokens in self._step}
        front: list[tuple[int, float]] = []
        late: list[_Outstanding] = []
        for entry in self._queue:
            if entry.runnable_at_s > starts_at_s:
                late.append(entry)
            elif left := entry.tokens_left - taken.get(id(entry), 0):
                front.append((left, entry.marginal_left_s * (left / entry.tokens_left)))
        queued_tokens, queued_s = sum(left for left, _ in front), sum(marginal_s for _, marginal_s in front)
        full_steps, last_tokens = divmod(queued_tokens, self._max_step_tokens)
        sharing, sharing_s = _last_of(front, last_tokens)
        drained_s = queued_s + self._step_s * (full_steps + (last_tokens > 0))
        late_from_at_s, late_clear_at_s = self._serve_late(late, starts_at_s + drained_s)
        clock_s = self._step_ends_at_s if self._step_ends_at_s is not None and not self._step_completes else inf
        return QueueSummary(
            step_ends_at_s=self._step_ends_at_s,
            queued_s=queued_s,
            queued_tokens=queued_tokens,
            co_batched=sharing,
            turn_s=queued_s - sharing_s + self._step_s * full_steps,
            drained_s=drained_s,
            late_from_at_s=late_from_at_s,
            num_late=len(late),
            late_clear_at_s=late_clear_at_s,
            stale_at_s=min(late_from_at_s, clock_s),
        )

    def _serve_late(self, late: list[_Outstanding], free_at_s: float) -> tuple[float, float]:
        """When the first of them is runnable, and when all are served; those that come during a step share the next."""
        if not late:
            return inf, -inf
        late.sort(key=lambda entry: entry.runnable_at_s)
        begins_at_s = -inf
        for entry in late:
            if entry.runnable_at_s > begins_at_s:
                begins_at_s = max(free_at_s, entry.runnable_at_s)
                free_at_s = begins_at_s + self._step_s
            free_at_s += entry.marginal_left_s
        return late[0].runnable_at_s, free_at_s

    def _close_step(self, completed: RequestId | None) -> None:
        """Those that got a part of their work go on first in the next step."""
        running = [entry for entry, taken in self._step if taken < entry.tokens_left and entry.request_id != completed]
        for entry, taken in self._step:
            if entry in running:
                entry.take(taken)
        if running:
            self._queue = running + [entry for entry in self._queue if entry not in running]
        self._step = []
        self._step_ends_at_s = None
        self._step_completes = False

    def _form_step(self, at_s: float) -> None:
        budget = self._max_step_tokens
        marginal_s = 0.0
        step: list[tuple[_Outstanding, int]] = []
        for entry in self._queue:
            if budget <= 0:
                break
            if entry.runnable_at_s <= at_s:
                taken = min(budget, entry.tokens_left)
                budget -= taken
                marginal_s += entry.marginal_left_s * (taken / entry.tokens_left)
                step.append((entry, taken))
        self._step = step
        self._step_completes = any(taken == entry.tokens_left for entry, taken in step)
        self._step_starts_at_s = at_s
        self._step_ends_at_s = at_s + self._step_s + marginal_s if step else None


def _last_of(front: Sequence[tuple[int, float]], num_tokens: int) -> tuple[int, float]:
    """How many requests the last so many tokens of a queue of (tokens, time) belong to, and their time."""
    sharing, time_s = 0, 0.0
    for left, marginal_s in reversed(front):
        if num_tokens <= 0:
            break
        sharing += 1
        time_s += marginal_s * min(1.0, num_tokens / left)
        num_tokens -= left
    return sharing, time_s
