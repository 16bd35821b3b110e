"""Consecutive event ids per topic, and the events since the last drain in the order of publication."""

from collections.abc import Sequence
from dataclasses import dataclass

from nebula_protocol.events import (
    BlockEntry,
    HostBlocksRemoved,
    HostBlocksStored,
    PicEvent,
    PicEventData,
    SegmentEntry,
    SegmentRemoved,
    SegmentStored,
    StoreCleared,
)
from nebula_protocol.ids import BlockHash, DpRank, EngineBlockHash, EventId, Origin, RemovalReason
from nebula_protocol.subjects import Topic
from nebula_protocol.tokens import TokenArray
from pic_worker.core.effects import KvRemoved, KvStored, WorkerEvent
from pic_worker.core.store_entry import Evictions, SegmentKey


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """All that both tiers hold at one moment."""

    blocks: tuple[BlockEntry, ...]
    """Parents before children; a block whose parent is gone is listed too."""
    segments: tuple[SegmentEntry, ...]
    last_event_ids: dict[Topic, EventId]
    """For a topic without events so far, the id before its first one."""


class EventLog:
    """Numbers what happened.

    Ids of kv-events are those that Dynamo's publisher will give: one per event, from 1. Those of pic-events begin at 0.
    """

    def __init__(self, dp_rank: DpRank) -> None:
        self._dp_rank = dp_rank
        self._next_kv_id = 1
        self._next_pic_id = 0
        self._events: list[WorkerEvent] = []

    def record_blocks_stored(
        self,
        *,
        lineage: str,
        parent_hash: EngineBlockHash | None,
        block_hashes: Sequence[EngineBlockHash],
        tokens_hashes: Sequence[BlockHash],
        tokens: TokenArray,
    ) -> None:
        event_id = self._take_kv_id()
        self._events.append(KvStored(event_id, lineage, parent_hash, tuple(block_hashes), tuple(tokens_hashes), tokens))

    def record_blocks_removed(self, block_hashes: Sequence[EngineBlockHash]) -> None:
        if block_hashes:
            self._events.append(KvRemoved(self._take_kv_id(), tuple(block_hashes)))

    def record_cleared(self, evictions: Evictions, *, is_empty: bool) -> None:
        """The store was cleared; entries in use are left in it unless `is_empty`."""
        if not is_empty:
            self.record_evictions(evictions, RemovalReason.CLEARED)
        elif evictions.blocks or evictions.segments:
            self.record_pic(StoreCleared())

    def record_host_blocks_stored(self, block_hashes: Sequence[EngineBlockHash]) -> None:
        if block_hashes:
            self.record_pic(HostBlocksStored(block_hashes=tuple(block_hashes)))

    def record_segment_stored(self, key: SegmentKey, num_tokens: int, origin: Origin) -> None:
        self.record_pic(
            SegmentStored(segment_hash=key.segment_hash, domain_id=key.domain_id, num_tokens=num_tokens, origin=origin)
        )

    def record_evictions(self, evictions: Evictions, reason: RemovalReason = RemovalReason.CAPACITY) -> None:
        """Entries left the store."""
        if evictions.blocks:
            self.record_pic(HostBlocksRemoved(block_hashes=evictions.blocks, reason=reason))
        for key in evictions.segments:
            self.record_pic(SegmentRemoved(segment_hash=key.segment_hash, domain_id=key.domain_id, reason=reason))

    def record_pic(self, data: PicEventData) -> None:
        """Whatever happened in the store."""
        self._events.append(PicEvent(event_id=EventId(self._next_pic_id), dp_rank=self._dp_rank, data=data))
        self._next_pic_id += 1

    def last_event_ids(self) -> dict[Topic, EventId]:
        return {Topic.KV_EVENTS: EventId(self._next_kv_id - 1), Topic.PIC_EVENTS: EventId(self._next_pic_id - 1)}

    def drain(self, *, with_device_events: bool = True) -> tuple[WorkerEvent, ...]:
        """The events since the last drain, oldest first; without the device tier's, those wait for the next drain."""
        if not self._events:
            return ()
        if with_device_events:
            events, self._events = tuple(self._events), []
            return events
        events = tuple(event for event in self._events if isinstance(event, PicEvent))
        if events:
            self._events = [event for event in self._events if not isinstance(event, PicEvent)]
        return events

    def _take_kv_id(self) -> EventId:
        event_id = EventId(self._next_kv_id)
        self._next_kv_id += 1
        return event_id
