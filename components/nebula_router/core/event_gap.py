"""Whether events are complete: consecutive ids per worker epoch, dp_rank and topic, and repair by a full state."""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from nebula_protocol.ids import EventId

E = TypeVar("E")

BEFORE_FIRST = EventId(-1)
_MAX_KEPT = 4096


class Verdict(Enum):
    NEXT = "next"
    OLD = "old"
    """Seen already, or contained in the state; to be ignored."""
    GAP = "gap"
    """Events before this one are missing. It is to be applied all the same: half of the truth is the better guess."""


@dataclass(frozen=True, slots=True)
class Resumed(Generic[E]):
    """What a full state leaves to be done."""

    events: tuple[E, ...]
    """Those after the state, to be applied on top of it, in order."""
    complete: bool
    """False: some after the state are missing, so that another state is needed."""


class EventTracker(Generic[E]):
    """Ids of one stream of events. Kept small: while a state is awaited the latest events are held back for it."""

    __slots__ = ("_due_at_s", "_kept", "_promised_id", "last_id")

    def __init__(self, *, keep: bool) -> None:
        self.last_id = BEFORE_FIRST
        """The last event that was taken in, or that the state contained."""
        self._kept: deque[tuple[EventId, E]] | None = None
        self._promised_id = BEFORE_FIRST
        self._due_at_s = 0.0
        if keep:
            self.keep()

    def offer(self, event_id: EventId, event: E) -> Verdict:
        if event_id <= self.last_id:
            return Verdict.OLD
        verdict = Verdict.NEXT if event_id == self.last_id + 1 else Verdict.GAP
        self.last_id = event_id
        if self._kept is not None:
            self._kept.append((event_id, event))
        return verdict

    def keep(self) -> None:
        """A state will be asked for: from now on events are held back, besides being applied."""
        if self._kept is None:
            self._kept = deque(maxlen=_MAX_KEPT)

    def resume(self, state_id: EventId) -> Resumed[E]:
        """A state that contains everything up to `state_id` has replaced all that was known."""
        kept = [(event_id, event) for event_id, event in self._kept or () if event_id > state_id]
        seen_id = max(self.last_id, state_id)
        self.last_id = state_id
        complete = True
        for event_id, _ in kept:
            complete = complete and event_id == self.last_id + 1
            self.last_id = event_id
        complete = complete and self.last_id == seen_id
        self.last_id = seen_id
        self._kept = None if complete else deque(kept, maxlen=_MAX_KEPT)
        return Resumed(tuple(event for _, event in kept), complete)

    def promise(self, event_id: EventId, due_at_s: float) -> None:
        """The worker has published this event: it, and all before it, should arrive by then."""
        if event_id > self._promised_id:
            self._promised_id, self._due_at_s = event_id, due_at_s

    def is_overdue(self, now_s: float) -> bool:
        return self._promised_id > self.last_id and now_s >= self._due_at_s
