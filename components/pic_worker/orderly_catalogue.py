"""The catalogue for callers that may be cancelled: what a call took is given back when its caller is gone."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import structlog

from pic_worker.catalogue import Catalogue, IncomingSegment, Lease, ReservationId, Reserved, Unreserved
from pic_worker.core.lease_table import LeaseId
from pic_worker.core.store_entry import SegmentKey
from pic_worker.errors import CatalogueGoneError

log = structlog.get_logger()

T = TypeVar("T")


class OrderlyCatalogue:
    """Calls that take something may be cancelled; those that give back run to their end by themselves."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._running: set[asyncio.Task[Any]] = set()
        self._leases: set[LeaseId] = set()
        self._reservations: set[ReservationId] = set()

    @property
    def num_leases(self) -> int:
        """Taken and not given back."""
        return len(self._leases)

    @property
    def num_reservations(self) -> int:
        """Neither confirmed nor cancelled."""
        return len(self._reservations)

    # ---- taking ----

    async def lease(self, keys: Sequence[SegmentKey]) -> Lease:
        """
        Raises:
            CatalogueGoneError: as for the others that wait.
        """
        return await self._take(self._lease(keys), self._undo_lease)

    async def reserve(self, segments: Sequence[IncomingSegment]) -> tuple[Reserved | Unreserved, ...]:
        return await self._take(self._reserve(segments), self._undo_reservations)

    async def confirm(self, reservation_id: ReservationId) -> LeaseId:
        return await self._take(self._confirm(reservation_id), self.release)

    # ---- giving back ----

    def release(self, lease_id: LeaseId) -> None:
        self._leases.discard(lease_id)
        self._give_back(self._catalogue.release(lease_id))

    def cancel(self, reservation_ids: Sequence[ReservationId]) -> None:
        if reservation_ids:
            self._reservations.difference_update(reservation_ids)
            self._give_back(self._catalogue.cancel(reservation_ids))

    def drop(self, keys: Sequence[SegmentKey]) -> None:
        self._give_back(self._catalogue.drop(keys))

    async def settle(self) -> None:
        """Until all that was begun is done."""
        while self._running:
            await asyncio.wait(self._running)

    # ----

    async def _lease(self, keys: Sequence[SegmentKey]) -> Lease:
        lease = await self._catalogue.lease(keys)
        if lease.lease_id is not None:
            self._leases.add(lease.lease_id)
        return lease

    async def _reserve(self, segments: Sequence[IncomingSegment]) -> tuple[Reserved | Unreserved, ...]:
        reserved = await self._catalogue.reserve(segments)
        self._reservations.update(one.reservation_id for one in reserved if isinstance(one, Reserved))
        return reserved

    async def _confirm(self, reservation_id: ReservationId) -> LeaseId:
        # Whatever comes of it: the catalogue that does not know the reservation has none.
        self._reservations.discard(reservation_id)
        lease_id = await self._catalogue.confirm(reservation_id)
        self._leases.add(lease_id)
        return lease_id

    async def _take(self, call: Coroutine[Any, Any, T], undo: Callable[[T], None]) -> T:
        task = self._track(asyncio.ensure_future(call))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: _undo(done, undo))
            raise

    def _give_back(self, call: Coroutine[Any, Any, None]) -> None:
        self._track(asyncio.ensure_future(call)).add_done_callback(_log_failure)

    def _track(self, task: "asyncio.Task[T]") -> "asyncio.Task[T]":
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _undo_lease(self, lease: Lease) -> None:
        if lease.lease_id is not None:
            self.release(lease.lease_id)

    def _undo_reservations(self, reserved: tuple[Reserved | Unreserved, ...]) -> None:
        self.cancel([one.reservation_id for one in reserved if isinstance(one, Reserved)])


def _undo(done: "asyncio.Task[T]", undo: Callable[[T], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        undo(done.result())


def _log_failure(done: "asyncio.Task[None]") -> None:
    if done.cancelled():
        return
    error = done.exception()
    if isinstance(error, CatalogueGoneError):
        log.warning("catalogue_gone", error=str(error))
    elif error is not None:
        log.error("catalogue_call_failed", error=repr(error))
