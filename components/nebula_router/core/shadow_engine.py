"""A shadow of one engine's queue: what a request that is queued now would wait for."""

from dataclasses import dataclass

from nebula_protocol.ids import RequestId

_NEVER_S = float("inf")


@dataclass(slots=True)
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
    """Absolute times, so that it stays true until something happens or `stale_at_s` passes."""

    step_ends_at_s: float | None
    """End of the running step; None when the engine idles."""
    queued_s: float
    """Marginal time of those who are in front of a request that is runnable at once, running step excluded."""
    queued_tokens: int
    co_batched: int
    """How many of those would share their step with a new request, and so wait for its work too."""
    late_from_s: float
    """When the first of those becomes runnable that still wait for remote segments; infinite without any."""
    late_clear_at_s: float
    """When all of those are served too; meaningful only where `late_from_s` is finite."""
    stale_at_s: float


class ShadowEngine:
    """Replays an engine that batches by iteration: first come first served, a token budget a step.

    The router sees an engine only through receipts. Between them this shadow forms steps as the engine would: a step
    takes what is runnable, oldest first, up to the budget, and lasts one step floor plus the marginal times. A step
    that should complete somebody's prefill is not over before a receipt says so, however long that takes: the shadow
    never runs ahead of the engine, and a receipt, which can only come at the end of a step, starts the next one. So
    errors of the estimate do not add up over steps. Each call is O(requests outstanding here).
    """

    def __init__(self, *, step_s: float, max_step_tokens: int) -> None:
        self.set_limits(step_s=step_s, max_step_tokens=max_step_tokens)
        self._queue: list[_Outstanding] = []
        self._step: list[tuple[_Outstanding, int]] = []
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
        """The engine has delivered this request, so the step that carried it has just ended.

        Others that the shadow had in the same step keep their work until their own receipts come, normally at the same
        moment: that they were really in that step is only an assumption.
        """
        self.advance(now_s)
        self._close_step(completed=request_id)
        self._queue = [entry for entry in self._queue if entry.request_id != request_id]
        self._form_step(now_s)

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
                next_s = min((entry.runnable_at_s for entry in self._queue), default=_NEVER_S)
                if next_s > now_s:
                    return
                self._form_step(next_s)

    def summary(self, now_s: float) -> QueueSummary:
        """Valid from `now_s`, to which it advances, on."""
        self.advance(now_s)
        taken = {id(entry): num_tokens for entry, num_tokens in self._step}
        starts_at_s = now_s if self._step_ends_at_s is None else max(self._step_ends_at_s, now_s)
        queued_s, front, late = 0.0, [], []
        for entry in self._queue:
            if entry.runnable_at_s > starts_at_s:
                late.append(entry)
            elif left := entry.tokens_left - taken.get(id(entry), 0):
                queued_s += entry.marginal_left_s * (left / entry.tokens_left)
                front.append(left)
        late.sort(key=lambda entry: entry.runnable_at_s)
        clear_at_s = starts_at_s + queued_s
        for entry in late:
            clear_at_s = max(clear_at_s, entry.runnable_at_s) + entry.marginal_left_s
        late_from_s = late[0].runnable_at_s if late else _NEVER_S
        return QueueSummary(
            step_ends_at_s=self._step_ends_at_s,
            queued_s=queued_s,
            queued_tokens=sum(front),
            co_batched=self._sharing_last_step(front),
            late_from_s=late_from_s,
            late_clear_at_s=clear_at_s,
            stale_at_s=min(late_from_s, self._ends_by_clock_at_s()),
        )

    def _ends_by_clock_at_s(self) -> float:
        return _NEVER_S if self._step_ends_at_s is None or self._step_completes else self._step_ends_at_s

    def _sharing_last_step(self, tokens_in_front: list[int]) -> int:
        room = sum(tokens_in_front) % self._max_step_tokens
        sharing = 0
        for num_tokens in reversed(tokens_in_front):
            if room <= 0:
                break
            sharing += 1
            room -= num_tokens
        return sharing

    def _close_step(self, completed: RequestId | None) -> None:
        for entry, taken in self._step:
            if taken < entry.tokens_left and entry.request_id != completed:
                entry.take(taken)
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
        self._step_ends_at_s = at_s + self._step_s + marginal_s if step else None
