"""One worker as the view sees it: its card, its holders, and how complete its events are."""

from collections.abc import Iterator

from nebula_protocol.card import WorkerCard
from nebula_protocol.events import PicEvent, WorkerKvEvent
from nebula_protocol.ids import DpRank, EventId, WorkerEpoch, WorkerId
from nebula_protocol.subjects import Topic
from nebula_router.core.event_gap import EventTracker
from nebula_router.core.holders import Holder

KvTracker = EventTracker[WorkerKvEvent]
PicTracker = EventTracker[PicEvent]


class WorkerFeed:
    """Without a card until the first full state. A worker that holds nothing (decode) has a card and no holders."""

    def __init__(self, worker_id: WorkerId) -> None:
        self.worker_id = worker_id
        self.card: WorkerCard | None = None
        self.epoch: WorkerEpoch | None = None
        self.holders: dict[DpRank, Holder] = {}
        self.awaits_state = False
        self.state_at_s = float("-inf")
        self._kv: dict[DpRank, KvTracker] = {}
        self._pic: dict[DpRank, PicTracker] = {}

    def may_hold(self, dp_rank: DpRank) -> bool:
        """Whether events of this scheduler mean something: it is a holder, or nothing is known of the worker yet."""
        return self.card is None or dp_rank in self.holders

    def kv(self, dp_rank: DpRank) -> KvTracker:
        tracker = self._kv.get(dp_rank)
        if tracker is None:
            tracker = self._kv[dp_rank] = EventTracker(keep=self.awaits_state)
        return tracker

    def pic(self, dp_rank: DpRank) -> PicTracker:
        tracker = self._pic.get(dp_rank)
        if tracker is None:
            tracker = self._pic[dp_rank] = EventTracker(keep=self.awaits_state)
        return tracker

    def trackers(self) -> Iterator[tuple[DpRank, Topic, KvTracker | PicTracker]]:
        for dp_rank, kv in self._kv.items():
            yield dp_rank, Topic.KV_EVENTS, kv
        for dp_rank, pic in self._pic.items():
            yield dp_rank, Topic.PIC_EVENTS, pic

    def last_event_ids(self, dp_rank: DpRank) -> dict[Topic, EventId]:
        return {Topic.KV_EVENTS: self.kv(dp_rank).last_id, Topic.PIC_EVENTS: self.pic(dp_rank).last_id}

    def await_state(self) -> None:
        self.awaits_state = True
        for _, _, tracker in self.trackers():
            tracker.keep()

    def start_anew(self, epoch: WorkerEpoch | None) -> None:
        """Another process: nothing that is known of the last one says anything about it."""
        self.card = None
        self.epoch = epoch
        self.holders.clear()
        self._kv.clear()
        self._pic.clear()
        self.await_state()
