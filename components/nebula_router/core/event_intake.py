"""The view's write path: workers' events and full states, complete and in order, into the index."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from nebula_protocol.card import WorkerCard
from nebula_protocol.errors import DecodeError
from nebula_protocol.events import WorkerKvEvent, WorkerPicEvents
from nebula_protocol.ids import DpRank, EventId, Role, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.messages import StateChunk
from nebula_protocol.receipt import Receipt
from nebula_protocol.subjects import Topic
from nebula_router.core.block_names import GRACE_S
from nebula_router.core.event_gap import BEFORE_FIRST, EventTracker, Verdict
from nebula_router.core.event_writer import AcceptedKvEvent, write_kv_events, write_pic_event
from nebula_router.core.evidence import Applied, Gap, GapReason, Tally
from nebula_router.core.holders import Holder, TooManyWorkersError
from nebula_router.core.index import Index
from nebula_router.core.worker_feed import WorkerFeed

_SWEEP_PERIOD_S = 1.0
# An engine may well continue chains that it never announced: no reason to ask it for everything again and again.
_UNKNOWN_PARENT_PERIOD_S = 60.0


E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Stream:
    """Whose events have consecutive ids."""

    feed: WorkerFeed
    dp_rank: DpRank
    topic: Topic


class EventIntake:
    """All workers' feeds. A worker is a holder from its first card on."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._feeds: dict[WorkerId, WorkerFeed] = {}
        self._noticed: list[Gap] = []
        self._next_sweep_s = float("-inf")

    # ---- members ----

    def worker_ids(self) -> frozenset[WorkerId]:
        return frozenset(self._feeds)

    def needs_state(self) -> frozenset[WorkerId]:
        return frozenset(worker_id for worker_id, feed in self._feeds.items() if feed.awaits_state)

    def feed(self, worker_id: WorkerId) -> WorkerFeed | None:
        return self._feeds.get(worker_id)

    def feeds(self) -> tuple[WorkerFeed, ...]:
        return tuple(self._feeds.values())

    def begin_state(self, worker_id: WorkerId) -> None:
        self._feed_of(worker_id).await_state()

    def add_worker(self, card: WorkerCard) -> None:
        self._take_card(self._feed_of(card.worker_id), card)

    def remove_worker(self, worker_id: WorkerId) -> None:
        feed = self._feeds.pop(worker_id, None)
        if feed is not None:
            self._forget_holders(feed)

    # ---- events ----

    def apply_kv_events(self, events: Sequence[WorkerKvEvent], now_s: float) -> Applied:
        tally = self._new_tally()
        accepted: list[AcceptedKvEvent] = []
        for event in events:
            feed = self._feeds.get(event.worker_id)
            if feed is None or not feed.may_hold(event.event.dp_rank):
                tally.num_ignored_events += 1
                continue
            stream = Stream(feed, event.event.dp_rank, Topic.KV_EVENTS)
            is_new = self._offer(stream, feed.kv(stream.dp_rank), event.event.event_id, event, tally)
            holder = feed.holders.get(stream.dp_rank)
            if is_new and holder is not None:
                accepted.append(AcceptedKvEvent(holder, event))
        self._write_kv_events(accepted, now_s, tally)
        return tally.result()

    def apply_pic_events(self, message: WorkerPicEvents, now_s: float) -> Applied:
        tally = self._new_tally()
        feed = self._feeds.get(message.worker_id)
        if feed is None:
            tally.num_ignored_events += len(message.events)
            return tally.result()
        self._compare_epoch(feed, message.epoch, tally.gaps)
        for event in message.events:
            if not feed.may_hold(event.dp_rank):
                tally.num_ignored_events += 1
                continue
            stream = Stream(feed, event.dp_rank, Topic.PIC_EVENTS)
            is_new = self._offer(stream, feed.pic(event.dp_rank), event.event_id, event, tally)
            holder = feed.holders.get(event.dp_rank)
            if is_new and holder is not None:
                write_pic_event(self._index, holder, event, now_s, tally)
        return tally.result()

    def apply_state(self, chunks: Sequence[StateChunk], now_s: float) -> Applied:
        """
        Raises:
            DecodeError: not all chunks of one snapshot.
            TooManyWorkersError: a new worker, and no room for it.
        """
        _check_state(chunks)
        tally = self._new_tally()
        card = chunks[0].card
        feed = self._feed_of(card.worker_id)
        self._take_card(feed, card)
        is_complete = True
        for dp_rank, holder in feed.holders.items():
            own = [chunk for chunk in chunks if chunk.dp_rank == dp_rank]
            blocks = [entry for chunk in own for entry in chunk.blocks]
            segments = [entry for chunk in own for entry in chunk.segments]
            self._index.replace_holder(holder, blocks, segments)
            tally.num_stored += len(blocks) + len(segments)
            last_ids = own[-1].last_event_ids if own else {}
            is_complete &= self._resume(feed, holder, last_ids, now_s, tally)
        feed.state_at_s = now_s
        feed.awaits_state = False
        if not is_complete:
            feed.await_state()
        return tally.result()

    def expect_events(self, receipt: Receipt, now_s: float) -> None:
        """The receipt names the worker's last events; when they do not come, its state will be asked for."""
        feed = self._feeds.get(receipt.worker.worker_id)
        if feed is None or not feed.holders:
            return
        self._compare_epoch(feed, receipt.epoch, self._noticed)
        dp_rank, last_ids = receipt.worker.dp_rank, receipt.last_event_ids
        feed.kv(dp_rank).promise(last_ids.get(Topic.KV_EVENTS, BEFORE_FIRST), now_s + GRACE_S)
        feed.pic(dp_rank).promise(last_ids.get(Topic.PIC_EVENTS, BEFORE_FIRST), now_s + GRACE_S)

    def expire(self, now_s: float) -> int:
        """Ends what waited too long: claims, of which it returns the number, and the hope for events. Cheap."""
        expired = self._index.expire(now_s)
        for holder in expired.holders_with_unknown_blocks:
            stream = self._stream_of(holder, Topic.PIC_EVENTS)
            self._need_state(stream, GapReason.UNKNOWN_BLOCK, self._noticed)
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + _SWEEP_PERIOD_S
            for feed in self._feeds.values():
                for dp_rank, topic, tracker in feed.trackers():
                    if tracker.is_overdue(now_s):
                        self._need_state(Stream(feed, dp_rank, topic), GapReason.MISSING_TAIL, self._noticed)
        return expired.num_claims

    # ---- inside ----

    def _new_tally(self) -> Tally:
        """Begins with the gaps that were noticed since the last."""
        gaps, self._noticed = self._noticed, []
        return Tally(gaps=gaps)

    def _feed_of(self, worker_id: WorkerId) -> WorkerFeed:
        return self._feeds.setdefault(worker_id, WorkerFeed(worker_id))

    def _stream_of(self, holder: Holder, topic: Topic) -> Stream:
        return Stream(self._feeds[holder.worker.worker_id], holder.worker.dp_rank, topic)

    def _offer(self, stream: Stream, tracker: EventTracker[E], event_id: EventId, event: E, tally: Tally) -> bool:
        """Whether the event is new."""
        expected = EventId(tracker.last_id + 1)
        verdict = tracker.offer(event_id, event)
        if verdict is Verdict.OLD:
            tally.num_ignored_events += 1
        elif verdict is Verdict.GAP:
            self._need_state(stream, GapReason.LOST_EVENTS, tally.gaps, expected, event_id)
        return verdict is not Verdict.OLD

    def _need_state(
        self,
        stream: Stream,
        reason: GapReason,
        gaps: list[Gap],
        expected: EventId | None = None,
        got: EventId | None = None,
    ) -> None:
        feed = stream.feed
        if not feed.awaits_state:
            feed.await_state()
            gaps.append(Gap(feed.worker_id, stream.dp_rank, stream.topic, reason, expected, got))

    def _write_kv_events(self, accepted: Sequence[AcceptedKvEvent], now_s: float, tally: Tally) -> None:
        for holder in write_kv_events(self._index, accepted, now_s, tally):
            stream = self._stream_of(holder, Topic.KV_EVENTS)
            # An index that is full has forgotten blocks itself.
            is_full = self._index.table.num_evicted > 0
            if not is_full and now_s - stream.feed.state_at_s >= _UNKNOWN_PARENT_PERIOD_S:
                self._need_state(stream, GapReason.UNKNOWN_PARENT, tally.gaps)

    def _resume(
        self, feed: WorkerFeed, holder: Holder, last_ids: dict[Topic, EventId], now_s: float, tally: Tally
    ) -> bool:
        """Applies the events after the state; False when some of them are missing."""
        dp_rank = holder.worker.dp_rank
        kv = feed.kv(dp_rank).resume(last_ids.get(Topic.KV_EVENTS, BEFORE_FIRST))
        pic = feed.pic(dp_rank).resume(last_ids.get(Topic.PIC_EVENTS, BEFORE_FIRST))
        self._write_kv_events([AcceptedKvEvent(holder, event) for event in kv.events], now_s, tally)
        for event in pic.events:
            write_pic_event(self._index, holder, event, now_s, tally)
        for topic, resumed in ((Topic.KV_EVENTS, kv), (Topic.PIC_EVENTS, pic)):
            if not resumed.complete:
                tally.gaps.append(Gap(feed.worker_id, dp_rank, topic, GapReason.LOST_EVENTS))
        return kv.complete and pic.complete

    def _take_card(self, feed: WorkerFeed, card: WorkerCard) -> None:
        if feed.epoch is not None and feed.epoch != card.epoch:
            self._restart(feed, card.epoch)
        feed.epoch = card.epoch
        is_new = feed.card is None
        feed.card = card
        if not is_new or card.role is not Role.PREFILL:
            return
        try:
            for rank in range(card.dp_size):
                worker = WorkerWithDpRank(card.worker_id, DpRank(rank))
                feed.holders[worker.dp_rank] = self._index.add_holder(worker, card)
        except TooManyWorkersError:
            self.remove_worker(card.worker_id)
            raise

    def _compare_epoch(self, feed: WorkerFeed, epoch: WorkerEpoch, gaps: list[Gap]) -> None:
        if feed.epoch is not None and feed.epoch != epoch:
            gaps.append(Gap(feed.worker_id, DpRank(0), Topic.PIC_EVENTS, GapReason.RESTARTED))
            self._restart(feed, epoch)
        feed.epoch = epoch

    def _restart(self, feed: WorkerFeed, epoch: WorkerEpoch) -> None:
        self._forget_holders(feed)
        feed.start_anew(epoch)

    def _forget_holders(self, feed: WorkerFeed) -> None:
        for holder in feed.holders.values():
            self._index.remove_holder(holder)
        feed.holders.clear()


def _check_state(chunks: Sequence[StateChunk]) -> None:
    if not chunks or not chunks[-1].last or len({chunk.snapshot_id for chunk in chunks}) != 1:
        raise DecodeError("a state that is not all chunks of one snapshot")
