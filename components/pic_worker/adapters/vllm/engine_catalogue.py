"""The worker's end of the control socket: the `Catalogue` of the store in the engine's process."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import TypeVar

from pic_worker.adapters.vllm.catalogue_wire import (
    CallFailed,
    CancelCall,
    CatalogueCall,
    CatalogueReply,
    ConfirmCall,
    Confirmed,
    Done,
    DropCall,
    LeaseCall,
    Leased,
    ReleaseCall,
    ReserveCall,
    RoomMade,
)
from pic_worker.adapters.vllm.engine_feed import EngineFeed
from pic_worker.catalogue import IncomingSegment, Lease, ReservationId, Reserved, Unreserved
from pic_worker.core.lease_table import LeaseId
from pic_worker.core.store_entry import SegmentKey
from pic_worker.errors import CatalogueGoneError

R = TypeVar("R")


class EngineCatalogue:
    """Calls leave in the order in which they are made. They have no deadline: what a call takes must not be lost, and
    an engine that has ended ends `run`, which fails them all."""

    def __init__(self, feed: EngineFeed) -> None:
        self._feed = feed
        self._call_ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[CatalogueReply]] = {}
        self._is_gone = False

    async def run(self) -> None:
        """Until cancelled: hands answers out.

        Raises:
            msgspec.MsgspecError: the connector is of another version.
        """
        try:
            async for reply in self._feed.replies():
                future = self._asked.pop(reply.call_id, None)
                if future is not None and not future.done():
                    future.set_result(reply)
        finally:
            self._is_gone = True
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(CatalogueGoneError("the engine's process has ended"))
            self._asked.clear()

    # ---- the port ----

    async def lease(self, keys: Sequence[SegmentKey]) -> Lease:
        return (await self._ask(LeaseCall(call_id=self._new_id(), keys=tuple(keys)), Leased)).lease

    async def release(self, lease_id: LeaseId) -> None:
        await self._ask(ReleaseCall(call_id=self._new_id(), lease_id=lease_id), Done)

    async def reserve(self, segments: Sequence[IncomingSegment]) -> tuple[Reserved | Unreserved, ...]:
        return (await self._ask(ReserveCall(call_id=self._new_id(), segments=tuple(segments)), RoomMade)).room

    async def confirm(self, reservation_id: ReservationId) -> LeaseId:
        call = ConfirmCall(call_id=self._new_id(), reservation_id=reservation_id)
        return (await self._ask(call, Confirmed)).lease_id

    async def cancel(self, reservation_ids: Sequence[ReservationId]) -> None:
        await self._ask(CancelCall(call_id=self._new_id(), reservation_ids=tuple(reservation_ids)), Done)

    async def drop(self, keys: Sequence[SegmentKey]) -> None:
        await self._ask(DropCall(call_id=self._new_id(), keys=tuple(keys)), Done)

    # ----

    def _new_id(self) -> int:
        return next(self._call_ids)

    async def _ask(self, call: CatalogueCall, wanted: type[R]) -> R:
        if self._is_gone:
            raise CatalogueGoneError("the engine's process has ended")
        future: asyncio.Future[CatalogueReply] = asyncio.get_running_loop().create_future()
        self._asked[call.call_id] = future
        # Not awaited: to an engine that is gone it would never be sent.
        sending = asyncio.create_task(self._feed.control(call))
        try:
            reply = await future
        finally:
            sending.cancel()
        if isinstance(reply, wanted):
            return reply
        reason = reply.reason if isinstance(reply, CallFailed) else f"a reply of another kind: {type(reply).__name__}"
        raise CatalogueGoneError(reason)
