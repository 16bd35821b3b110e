"""The store of the engine's process, asked from the worker's process over a real socket."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from support.data_store import DOMAIN, PAGE_TOKENS, key_of, tokens_of

from nebula_protocol.events import PicEventData, SegmentRemoved, SegmentStored
from nebula_protocol.ids import Origin
from pic_worker.adapters.vllm.control_desk import ControlDesk
from pic_worker.adapters.vllm.engine_catalogue import EngineCatalogue
from pic_worker.adapters.vllm.engine_feed import EngineFeed
from pic_worker.adapters.vllm.engine_wire import ClearControl
from pic_worker.adapters.vllm.sockets import SocketFolder
from pic_worker.catalogue import IncomingSegment, ReservationId, Reserved, Unreserved
from pic_worker.core.host_catalogue import HostCatalogue
from pic_worker.core.store_entry import StoredSegment
from pic_worker.errors import CatalogueGoneError

pytestmark = pytest.mark.integration

NUM_PAGES = 4
TOKENS = tokens_of(100, 2 * PAGE_TOKENS)


class IdleEngine:
    """The scheduler half of an engine that has nothing to do."""

    def __init__(self) -> None:
        self.catalogue = HostCatalogue(
            capacity_tokens=NUM_PAGES * PAGE_TOKENS, page_tokens=PAGE_TOKENS, block_size_tokens=4, prefix_ratio=0.0
        )
        self.told: list[PicEventData] = []

    def tell_events(self) -> None:
        self.told += self.catalogue.take_events()


class Ends:
    """Both ends of the socket."""

    def __init__(self) -> None:
        self.sockets = SocketFolder.make()
        self.feed = EngineFeed(self.sockets)
        self.engine = IdleEngine()
        self.lock = threading.Lock()
        self.desk = ControlDesk(self.sockets.control_url, self.engine, self.lock)
        self.catalogue = EngineCatalogue(self.feed)
        self.running = asyncio.create_task(self.catalogue.run())

    async def end_answers(self) -> None:
        self.running.cancel()
        with suppress(asyncio.CancelledError):
            await self.running


@asynccontextmanager
async def connected() -> AsyncIterator[Ends]:
    ends = Ends()
    try:
        yield ends
    finally:
        await ends.end_answers()
        ends.desk.close()
        ends.feed.close()
        ends.sockets.remove()


def incoming(tokens: bytes) -> IncomingSegment:
    stored = StoredSegment(key_of(tokens), tokens, len(tokens) // 4, Origin.IN_CONTEXT)
    return IncomingSegment(stored, 30)


async def test_a_segment_is_taken_in_given_away_and_dropped_while_the_engine_is_idle() -> None:
    async with connected() as ends:
        catalogue = ends.catalogue
        (room,) = await catalogue.reserve([incoming(TOKENS)])
        assert isinstance(room, Reserved)
        assert len(room.pages) == 2
        assert (await catalogue.lease([key_of(TOKENS)])).lease_id is None
        assert await catalogue.reserve([incoming(TOKENS)]) == (Unreserved.ALREADY_HERE,)
        held = await catalogue.confirm(room.reservation_id)
        lease = await catalogue.lease([key_of(TOKENS), key_of(tokens_of(0, 3))])
        there, absent = lease.segments
        assert absent is None
        assert there is not None
        assert (there.token_bytes, there.stored_position, there.pages) == (TOKENS, 30, room.pages)
        assert lease.lease_id is not None
        await catalogue.release(held)
        await catalogue.drop([key_of(TOKENS)])
        assert ends.engine.catalogue.has_segment(key_of(TOKENS))
        await catalogue.release(lease.lease_id)
        await catalogue.drop([key_of(TOKENS)])
        assert [type(event) for event in ends.engine.told] == [SegmentStored, SegmentRemoved]
        assert ends.engine.told[0].domain_id == DOMAIN  # type: ignore[union-attr]
        assert ends.engine.catalogue.num_free_pages == NUM_PAGES


async def test_no_room_and_an_unknown_reservation_are_said_so() -> None:
    async with connected() as ends:
        big = incoming(tokens_of(0, (NUM_PAGES + 1) * PAGE_TOKENS))
        assert await ends.catalogue.reserve([big]) == (Unreserved.NO_ROOM,)
        with pytest.raises(CatalogueGoneError, match="reservation"):
            await ends.catalogue.confirm(ReservationId(99))
        await ends.catalogue.cancel([ReservationId(99)])


async def test_the_worker_s_orders_are_obeyed_in_their_place_between_questions() -> None:
    async with connected() as ends:
        (room,) = await ends.catalogue.reserve([incoming(TOKENS)])
        assert isinstance(room, Reserved)
        held = await ends.catalogue.confirm(room.reservation_id)
        await ends.catalogue.release(held)
        await ends.feed.control(ClearControl())
        assert (await ends.catalogue.lease([key_of(TOKENS)])).lease_id is None


async def test_a_question_waits_while_a_step_is_being_planned() -> None:
    async with connected() as ends:
        with ends.lock:
            asked = asyncio.create_task(ends.catalogue.lease([key_of(TOKENS)]))
            done, _ = await asyncio.wait((asked,), timeout=0.05)
            assert not done
        assert (await asked).lease_id is None


async def test_an_engine_that_has_ended_fails_what_was_asked_and_all_that_is_asked() -> None:
    async with connected() as ends:
        with ends.lock:
            asked = asyncio.create_task(ends.catalogue.lease([key_of(TOKENS)]))
            await asyncio.sleep(0)
            await ends.end_answers()
            with pytest.raises(CatalogueGoneError):
                await asked
        with pytest.raises(CatalogueGoneError):
            await ends.catalogue.lease([key_of(TOKENS)])
