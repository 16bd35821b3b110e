"""The engine's store as the data plane uses it: pinning what is given away, making room for what comes."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NewType, Protocol

from nebula_protocol.ids import Origin
from pic_worker.core.arena_ids import Page
from pic_worker.core.lease_table import LeaseId
from pic_worker.core.store_entry import SegmentKey, StoredSegment

ReservationId = NewType("ReservationId", int)
"""Names room for one segment until it is confirmed or cancelled; never used twice."""


@dataclass(frozen=True, slots=True)
class LeasedSegment:
    key: SegmentKey
    token_bytes: bytes
    origin: Origin
    stored_position: int
    """Position that its first key is rotated to."""
    pages: tuple[Page, ...]
    """In each rank's arena."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Those that are here, pinned until the lease is released."""

    lease_id: LeaseId | None
    """None: nothing is here, and there is nothing to release."""
    segments: tuple[LeasedSegment | None, ...]
    """In the order asked for."""


@dataclass(frozen=True, slots=True)
class IncomingSegment:
    stored: StoredSegment
    stored_position: int


@dataclass(frozen=True, slots=True)
class Reserved:
    reservation_id: ReservationId
    pages: tuple[Page, ...]


class Unreserved(Enum):
    """Why no room was made."""

    ALREADY_HERE = "already_here"
    """As good or better, now or soon: computed or fetched for another request."""
    NO_ROOM = "no_room"


class Catalogue(Protocol):
    """Calls of one worker are answered in their order.

    Raises:
        CatalogueGoneError: from any call, when the engine's process does not answer.
    """

    async def lease(self, keys: Sequence[SegmentKey]) -> Lease:
        """Pins those that count; they become the most recently used."""
        ...

    async def release(self, lease_id: LeaseId) -> None:
        """Undoes the pins of a lease, once."""
        ...

    async def reserve(self, segments: Sequence[IncomingSegment]) -> tuple[Reserved | Unreserved, ...]:
        """Room for each segment, in their order; it counts for nobody until it is confirmed."""
        ...

    async def confirm(self, reservation_id: ReservationId) -> LeaseId:
        """All ranks' pages are written: the segment counts. It stays pinned by the lease that comes back."""
        ...

    async def cancel(self, reservation_ids: Sequence[ReservationId]) -> None:
        """The pages are given back; nobody writes them any more."""
        ...

    async def drop(self, keys: Sequence[SegmentKey]) -> None:
        """Takes these out, as soon as they are not in use: copies that are not to be kept."""
        ...
