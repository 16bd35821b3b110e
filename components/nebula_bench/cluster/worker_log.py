"""What really happened in the workers, whatever the router knew of it."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from nebula_protocol.events import PicEvent, SegmentRemoved, SegmentStored, StoreCleared
from nebula_protocol.ids import SegmentHash, WorkerId
from pic_worker.core.effects import WorkerEvent


class Step(NamedTuple):
    began_at_s: float
    duration_s: float


@dataclass(slots=True)
class _Presence:
    """How many workers stored a segment, over time."""

    times_s: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def change(self, by: int, now_s: float) -> None:
        self.counts.append((self.counts[-1] if self.counts else 0) + by)
        self.times_s.append(now_s)

    def count_at(self, at_s: float) -> int:
        """Of the moment just before anything that happened at `at_s` itself is undone: the last known count."""
        place = bisect_right(self.times_s, at_s)
        return self.counts[place - 1] if place else 0


class WorkerLog:
    """Steps, and where segments were stored when."""

    def __init__(self) -> None:
        self.steps: dict[WorkerId, list[Step]] = {}
        self._presence: dict[SegmentHash, _Presence] = {}
        self._held: dict[WorkerId, set[SegmentHash]] = {}

    def record_step(self, worker_id: WorkerId, began_at_s: float, duration_s: float) -> None:
        self.steps.setdefault(worker_id, []).append(Step(began_at_s, duration_s))

    def record_events(self, worker_id: WorkerId, events: Sequence[WorkerEvent], now_s: float) -> None:
        held = self._held.setdefault(worker_id, set())
        for event in events:
            if not isinstance(event, PicEvent):
                continue
            match event.data:
                case SegmentStored(segment_hash=segment_hash):
                    # A copy of better origin takes the place of one that is there.
                    if segment_hash not in held:
                        held.add(segment_hash)
                        self._change(segment_hash, 1, now_s)
                case SegmentRemoved(segment_hash=segment_hash):
                    held.remove(segment_hash)
                    self._change(segment_hash, -1, now_s)
                case StoreCleared():
                    self._drop_all(held, now_s)
                case _:
                    pass

    def record_crash(self, worker_id: WorkerId, now_s: float) -> None:
        self._drop_all(self._held.setdefault(worker_id, set()), now_s)

    def is_stored(self, segment_hash: SegmentHash, at_s: float) -> bool:
        """Whether any worker had the segment then."""
        presence = self._presence.get(segment_hash)
        return presence is not None and presence.count_at(at_s) > 0

    def busy_s(self, start_s: float, end_s: float) -> float:
        """Time that all workers together spent in steps between the two moments."""
        return sum(
            max(0.0, min(step.began_at_s + step.duration_s, end_s) - max(step.began_at_s, start_s))
            for steps in self.steps.values()
            for step in steps
        )

    def _change(self, segment_hash: SegmentHash, by: int, now_s: float) -> None:
        presence = self._presence.get(segment_hash)
        if presence is None:
            presence = self._presence[segment_hash] = _Presence()
        presence.change(by, now_s)

    def _drop_all(self, held: set[SegmentHash], now_s: float) -> None:
        for segment_hash in held:
            self._change(segment_hash, -1, now_s)
        held.clear()
