"""The segments of this worker, there or on their way, and who wants to hear of them."""

from typing import Protocol

from nebula_protocol.ids import Origin
from nebula_protocol.tokens import TOKEN_DTYPE
from pic_worker.core.event_log import EventLog
from pic_worker.core.in_flight import InFlight
from pic_worker.core.prefix_cache import PrefixCache
from pic_worker.core.store import Kept, TwoClassStore
from pic_worker.core.store_entry import SegmentKey, StoredSegment


class SegmentWatcher(Protocol):
    def segment_stored(self, key: SegmentKey, now_s: float) -> None:
        """It is in the store now."""
        ...

    def segment_given_up(self, key: SegmentKey, now_s: float) -> None:
        """One of those that were to produce it will not; others still may."""
        ...


class SegmentShelf:
    def __init__(self, store: TwoClassStore, log: EventLog, prefix: PrefixCache) -> None:
        self.store = store
        self._prefix = prefix
        self.in_flight = InFlight()
        self._log = log
        self._watchers: list[SegmentWatcher] = []

    def watch(self, watcher: SegmentWatcher) -> None:
        self._watchers.append(watcher)

    def find(self, key: SegmentKey, token_bytes: bytes) -> StoredSegment | None:
        """The entry whose tokens are these; an entry of the same hash and other tokens is none."""
        stored = self.store.find_segment(key)
        return stored if stored is not None and stored.token_bytes == token_bytes else None

    def put(self, key: SegmentKey, token_bytes: bytes, origin: Origin, now_s: float) -> Kept:
        """Offers a segment to the store and tells everyone who waits for it."""
        num_tokens = len(token_bytes) // TOKEN_DTYPE.itemsize
        put = self.store.put_segment(StoredSegment(key, token_bytes, num_tokens, origin))
        self._prefix.record_store_evictions(put.evictions)
        if put.kept is Kept.NEW:
            self._log.record_segment_stored(key, num_tokens, origin)
        if put.kept is not Kept.REFUSED:
            for watcher in self._watchers:
                watcher.segment_stored(key, now_s)
        return put.kept

    def begin(self, key: SegmentKey, arrival_order: int) -> None:
        """A request is going to produce the segment."""
        self.in_flight.begin(key, arrival_order)

    def end(self, key: SegmentKey, arrival_order: int, now_s: float) -> None:
        """It did, or will not."""
        self.in_flight.end(key, arrival_order)
        for watcher in self._watchers:
            watcher.segment_given_up(key, now_s)
