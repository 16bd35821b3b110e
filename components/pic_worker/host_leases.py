"""Leases and reservations that another process holds on the host store, each ended exactly once."""

from collections.abc import Sequence

from pic_worker.catalogue import IncomingSegment, Lease, LeasedSegment, ReservationId, Reserved, Unreserved
from pic_worker.core.arena_ids import SaveId
from pic_worker.core.host_catalogue import HostCatalogue
from pic_worker.core.lease_table import LeaseId
from pic_worker.core.store_entry import SegmentKey


class HostLeases:
    """What `Catalogue` promises, over the catalogue itself."""

    def __init__(self, catalogue: HostCatalogue) -> None:
        self._catalogue = catalogue
        self._leases: dict[LeaseId, tuple[SegmentKey, ...]] = {}
        self._reservations: dict[ReservationId, tuple[SaveId, SegmentKey]] = {}
        self._last_id = 0

    @property
    def num_leases(self) -> int:
        return len(self._leases)

    @property
    def num_reservations(self) -> int:
        return len(self._reservations)

    def lease(self, keys: Sequence[SegmentKey]) -> Lease:
        found = [self._catalogue.find_segment(key) for key in keys]
        segments = tuple(
            None
            if host is None
            else LeasedSegment(host.key, host.token_bytes, host.origin, host.stored_position, host.pages)
            for host in found
        )
        present = [segment.key for segment in segments if segment is not None]
        return Lease(self._grant(present) if present else None, segments)

    def release(self, lease_id: LeaseId) -> None:
        """Of a lease that has ended already, nothing."""
        for key in self._leases.pop(lease_id, ()):
            self._catalogue.end_lease(key)

    def reserve(self, segments: Sequence[IncomingSegment]) -> tuple[Reserved | Unreserved, ...]:
        return tuple(self._reserve(segment) for segment in segments)

    def confirm(self, reservation_id: ReservationId) -> LeaseId:
        """
        Raises:
            KeyError: there is no such reservation, or it has been cancelled.
        """
        save_id, key = self._reservations.pop(reservation_id)
        self._catalogue.confirm((save_id,))
        return self._grant((key,))

    def cancel(self, reservation_ids: Sequence[ReservationId]) -> None:
        for reservation_id in reservation_ids:
            reserved = self._reservations.pop(reservation_id, None)
            if reserved is not None:
                self._catalogue.cancel((reserved[0],))

    def drop(self, keys: Sequence[SegmentKey]) -> None:
        for key in keys:
            self._catalogue.drop_segment(key)

    def end_all(self) -> None:
        """Their holder is gone: nobody reads or writes the pages any more."""
        for lease_id in tuple(self._leases):
            self.release(lease_id)
        self.cancel(tuple(self._reservations))

    def _reserve(self, segment: IncomingSegment) -> Reserved | Unreserved:
        key = segment.stored.key
        # Nor does a copy in context replace one computed alone: that one's pages may be being read.
        if self._catalogue.is_expected(key):
            return Unreserved.ALREADY_HERE
        room = self._catalogue.reserve_segment(segment.stored, segment.stored_position)
        if room is None:
            return Unreserved.NO_ROOM
        reservation_id = ReservationId(self._next_id())
        self._reservations[reservation_id] = (room.save_id, key)
        return Reserved(reservation_id, room.pages)

    def _grant(self, keys: Sequence[SegmentKey]) -> LeaseId:
        for key in keys:
            self._catalogue.lease_segment(key)
        lease_id = LeaseId(self._next_id())
        self._leases[lease_id] = tuple(keys)
        return lease_id

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id
