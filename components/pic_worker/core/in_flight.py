"""Which segments this worker is about to have, and for which of its requests."""

from pic_worker.core.store_entry import SegmentKey


class InFlight:
    """Counts, per segment, the live requests that compute or fetch it and will store it."""

    def __init__(self) -> None:
        self._producers: dict[SegmentKey, list[int]] = {}

    def __len__(self) -> int:
        return len(self._producers)

    def begin(self, key: SegmentKey, arrival_order: int) -> None:
        """A request, named by its place in the order of arrival, is going to produce the segment."""
        self._producers.setdefault(key, []).append(arrival_order)

    def end(self, key: SegmentKey, arrival_order: int) -> None:
        """It did, or never will."""
        producers = self._producers[key]
        producers.remove(arrival_order)
        if not producers:
            del self._producers[key]

    def is_coming(self, key: SegmentKey) -> bool:
        return key in self._producers

    def is_coming_before(self, key: SegmentKey, arrival_order: int) -> bool:
        """Whether a request that arrived earlier produces it; waiting only for those can never form a circle."""
        return any(producer < arrival_order for producer in self._producers.get(key, ()))
