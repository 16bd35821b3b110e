"""Calls to the store whose callers are cancelled while they wait."""

import asyncio
from collections.abc import Sequence

import pytest
from support.data_store import FakeStore, key_of, tokens_of

from nebula_protocol.ids import Origin
from pic_worker.catalogue import IncomingSegment, Lease, ReservationId, Reserved, Unreserved
from pic_worker.core.lease_table import LeaseId
from pic_worker.core.store_entry import SegmentKey, StoredSegment
from pic_worker.orderly_catalogue import OrderlyCatalogue


class SlowStore(FakeStore):
    """Does at once what it is asked, and answers when it may."""

    def __init__(self) -> None:
        super().__init__(num_pages=8)
        self.may_answer = asyncio.Event()

    async def lease(self, keys: Sequence[SegmentKey]) -> Lease:
        lease = await super().lease(keys)
        await self.may_answer.wait()
        return lease

    async def reserve(self, segments: Sequence[IncomingSegment]) -> tuple[Reserved | Unreserved, ...]:
        reserved = await super().reserve(segments)
        await self.may_answer.wait()
        return reserved

    async def confirm(self, reservation_id: ReservationId) -> LeaseId:
        lease_id = await super().confirm(reservation_id)
        await self.may_answer.wait()
        return lease_id


def incoming() -> IncomingSegment:
    return incoming_of(1)


def incoming_of(first_token: int, num_tokens: int = 8) -> IncomingSegment:
    tokens = tokens_of(first_token, num_tokens)
    return IncomingSegment(StoredSegment(key_of(tokens), tokens, num_tokens, Origin.ALONE), 0)


async def cancel(call: "asyncio.Task[object]", store: SlowStore, catalogue: OrderlyCatalogue) -> None:
    for _ in range(3):
        await asyncio.sleep(0)
    assert not store.is_clean
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    store.may_answer.set()
    await catalogue.settle()


async def test_a_lease_that_nobody_waits_for_any_more_is_released() -> None:
    store = SlowStore()
    catalogue = OrderlyCatalogue(store)
    key = store.put(tokens_of(1, 8)).key
    await cancel(asyncio.ensure_future(catalogue.lease((key,))), store, catalogue)
    assert store.is_clean


async def test_room_that_nobody_waits_for_any_more_is_given_back() -> None:
    store = SlowStore()
    catalogue = OrderlyCatalogue(store)
    await cancel(asyncio.ensure_future(catalogue.reserve((incoming(),))), store, catalogue)
    assert store.is_clean
    assert len(store.free) == 8


async def test_a_confirmed_copy_that_nobody_waits_for_stays_but_is_not_pinned() -> None:
    store = SlowStore()
    catalogue = OrderlyCatalogue(store)
    store.may_answer.set()
    (reserved,) = await catalogue.reserve((incoming(),))
    assert isinstance(reserved, Reserved)
    store.may_answer.clear()
    await cancel(asyncio.ensure_future(catalogue.confirm(reserved.reservation_id)), store, catalogue)
    assert store.is_clean
    assert len(store.entries) == 1


def pins(catalogue: OrderlyCatalogue) -> tuple[int, int]:
    return catalogue.num_leases, catalogue.num_reservations


async def test_what_is_taken_and_not_given_back_is_counted() -> None:
    store = FakeStore(num_pages=8)
    catalogue = OrderlyCatalogue(store)
    key = store.put(tokens_of(50, 8)).key
    lease = await catalogue.lease((key,))
    (kept, given_back) = await catalogue.reserve((incoming(), incoming_of(100)))
    assert isinstance(kept, Reserved)
    assert isinstance(given_back, Reserved)
    assert pins(catalogue) == (1, 2)
    catalogue.cancel([given_back.reservation_id])
    confirmed = await catalogue.confirm(kept.reservation_id)
    assert pins(catalogue) == (2, 0)
    assert lease.lease_id is not None
    for lease_id in (lease.lease_id, confirmed, confirmed):
        catalogue.release(lease_id)
    assert pins(catalogue) == (0, 0)
    await catalogue.settle()


async def test_what_was_not_there_is_not_counted_as_taken() -> None:
    store = FakeStore(num_pages=2)
    catalogue = OrderlyCatalogue(store)
    assert (await catalogue.lease((incoming().stored.key,))).lease_id is None
    await catalogue.reserve((incoming_of(1, num_tokens=40),))
    assert pins(catalogue) == (0, 0)


async def test_what_is_taken_for_a_caller_that_is_gone_is_counted_until_it_is_given_back() -> None:
    store = SlowStore()
    catalogue = OrderlyCatalogue(store)
    key = store.put(tokens_of(1, 8)).key
    await cancel(asyncio.ensure_future(catalogue.lease((key,))), store, catalogue)
    assert pins(catalogue) == (0, 0)
