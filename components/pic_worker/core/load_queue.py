"""How the tokens that loads have to compute are shared out over steps."""

from dataclasses import dataclass
from enum import Enum


class Start(Enum):
    """When a load of some size could begin in the step being planned."""

    AT_ONCE = "at_once"
    """It is done within the step."""
    OVER_STEPS = "over_steps"
    LATER = "later"
    """Others use up the step."""


@dataclass(frozen=True, slots=True)
class LoadChunk:
    """Of a load's tokens to compute, in ascending order, those numbered [first, first + num_tokens)."""

    request_id: str
    first: int
    num_tokens: int
    is_last: bool
    is_over_steps: bool


@dataclass(slots=True)
class _Load:
    left_tokens: int
    done_tokens: int = 0


class LoadQueue:
    """At most `max_step_tokens` a step over all loads, those that began first going first.

    While loads are going on over steps, at least half of each step is theirs, so that short loads, which are done at
    once, cannot starve them; nor do they block the short ones.
    """

    def __init__(self, max_step_tokens: int) -> None:
        self._max_step_tokens = max_step_tokens
        self._at_once: dict[str, int] = {}
        self._over_steps: dict[str, _Load] = {}

    @property
    def num_over_steps(self) -> int:
        return len(self._over_steps)

    def when(self, num_tokens: int) -> Start:
        """For a load that has `num_tokens` to compute."""
        if not num_tokens:
            return Start.AT_ONCE
        used_tokens = sum(self._at_once.values())
        going_tokens = sum(load.left_tokens for load in self._over_steps.values())
        theirs = min(going_tokens, self._max_step_tokens - self._max_step_tokens // 2)
        if num_tokens <= self._max_step_tokens - theirs - used_tokens:
            return Start.AT_ONCE
        if used_tokens + going_tokens >= self._max_step_tokens:
            return Start.LATER
        return Start.OVER_STEPS

    def begin(self, request_id: str, num_tokens: int, start: Start) -> None:
        """
        Args:
            start: AT_ONCE or OVER_STEPS, as `when` said since the last `take_step`.
        """
        if start is Start.AT_ONCE:
            self._at_once[request_id] = num_tokens
        else:
            self._over_steps[request_id] = _Load(num_tokens)

    def forget(self, request_id: str) -> bool:
        """Drops a load that is not over; False where there is none."""
        at_once = self._at_once.pop(request_id, None)
        return self._over_steps.pop(request_id, None) is not None or at_once is not None

    def take_step(self) -> list[LoadChunk]:
        """What is computed in the step that was planned; a load without tokens gets a chunk of none."""
        chunks = [LoadChunk(name, 0, num_tokens, True, False) for name, num_tokens in self._at_once.items()]
        room_tokens = self._max_step_tokens - sum(self._at_once.values())
        self._at_once.clear()
        for request_id, load in list(self._over_steps.items()):
            num_tokens = min(room_tokens, load.left_tokens)
            is_last = num_tokens == load.left_tokens
            if num_tokens or is_last:
                chunks.append(LoadChunk(request_id, load.done_tokens, num_tokens, is_last, True))
            load.left_tokens -= num_tokens
            load.done_tokens += num_tokens
            room_tokens -= num_tokens
            if is_last:
                del self._over_steps[request_id]
        return chunks
