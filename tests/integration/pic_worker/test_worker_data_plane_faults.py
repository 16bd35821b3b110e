"""Transfers that go wrong, with the source in a process of its own: no wrong byte, no hang, nothing left behind."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from support.chopping_proxy import ChoppingProxy, Harm
from support.data_node import DataWorld, Node, request, settled
from support.data_source import NUM_SEGMENTS, NUM_TOKENS, SEGMENT_BYTES, SourceProcess, wanted
from support.data_source_process import PAGE_BYTES, SOURCE, tokens_of_segment
from support.data_store import key_of

from nebula_protocol.ids import Origin
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason
from pic_worker.segment_flight import Brought, SegmentResult

pytestmark = pytest.mark.integration

PATIENT_S = 30.0
STALL_S = 3.0
CAME = Brought(Source.FETCH, Origin.ALONE)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[DataWorld]:
    world = DataWorld("tcp", tmp_path)
    yield world
    await world.close()


@pytest.fixture
async def home(world: DataWorld) -> Node:
    return await world.start(num_pages=64, page_bytes=PAGE_BYTES, stall_s=STALL_S)


@pytest.fixture
def source(world: DataWorld) -> Iterator[SourceProcess]:
    process = SourceProcess("tcp", world.secret_file)
    world.directory.cards[SOURCE] = process.card
    yield process
    process.close()


async def fetch(home: Node, budget_s: float = PATIENT_S) -> list[SegmentResult]:
    async with home.fetcher.bring(request(), wanted(), budget_s) as results:
        return list(results.values())


async def held_by(world: DataWorld, source: SourceProcess, harm: Harm, at_byte: int) -> ChoppingProxy:
    """From now on homes reach the source through the proxy."""
    proxy = ChoppingProxy(source.card.host, source.card.port, harm, at_byte)
    world.directory.cards[SOURCE] = msgspec.structs.replace(source.card, port=await proxy.start())
    return proxy


async def assert_nothing_is_left(home: Node, num_kept: int) -> None:
    await settled(home)
    assert home.store.is_clean
    assert home.fetcher.num_running == 0
    assert len(home.store.entries) == num_kept
    assert len(home.store.free) + home.store.num_used_pages == 64
    for seed in range(1, NUM_SEGMENTS + 1):
        key = key_of(tokens_of_segment(seed, NUM_TOKENS))
        assert key not in home.store.entries or home.has(key, seed)


async def assert_source_lets_go(source: SourceProcess) -> None:
    end_s = time.monotonic() + 20
    while source.holds():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.05)


async def test_what_had_arrived_before_the_source_was_killed_is_used(
    world: DataWorld, home: Node, source: SourceProcess
) -> None:
    # In the third of four segments.
    proxy = await held_by(world, source, Harm.HOLD, int(2.5 * SEGMENT_BYTES))
    fetching = asyncio.create_task(fetch(home))
    await proxy.reached.wait()
    source.kill()
    began_s = time.monotonic()
    await proxy.close()
    assert await fetching == [CAME, CAME, FallbackReason.SOURCE_GONE, FallbackReason.SOURCE_GONE]
    assert time.monotonic() - began_s < PATIENT_S / 4
    await assert_nothing_is_left(home, num_kept=2)


async def test_a_connection_that_breaks_costs_only_what_was_not_there_yet(
    world: DataWorld, home: Node, source: SourceProcess
) -> None:
    await held_by(world, source, Harm.CUT, int(1.5 * SEGMENT_BYTES))
    assert await fetch(home) == [CAME, *[FallbackReason.SOURCE_GONE] * 3]
    await assert_nothing_is_left(home, num_kept=1)
    await assert_source_lets_go(source)


async def test_a_spoilt_byte_is_noticed_and_its_segment_alone_refused(
    world: DataWorld, home: Node, source: SourceProcess
) -> None:
    await held_by(world, source, Harm.SPOIL, int(1.5 * SEGMENT_BYTES))
    assert await fetch(home) == [CAME, FallbackReason.DAMAGED, CAME, CAME]
    await assert_nothing_is_left(home, num_kept=3)
    await assert_source_lets_go(source)


async def test_a_source_that_freezes_in_the_middle_is_given_up(
    world: DataWorld, home: Node, source: SourceProcess
) -> None:
    proxy = await held_by(world, source, Harm.HOLD, int(2.5 * SEGMENT_BYTES))
    fetching = asyncio.create_task(fetch(home))
    await proxy.reached.wait()
    source.freeze()
    began_s = time.monotonic()
    # Three seconds without a byte.
    assert await fetching == [CAME, CAME, FallbackReason.SOURCE_GONE, FallbackReason.SOURCE_GONE]
    assert time.monotonic() - began_s < PATIENT_S / 2
    await assert_nothing_is_left(home, num_kept=2)
    source.thaw()
    await proxy.close()
    await assert_source_lets_go(source)
    await assert_nothing_is_left(home, num_kept=2)


async def test_a_frozen_source_does_not_even_begin(world: DataWorld, home: Node, source: SourceProcess) -> None:
    source.freeze()
    began_s = time.monotonic()
    assert await fetch(home) == [FallbackReason.SOURCE_GONE] * 4
    assert time.monotonic() - began_s < PATIENT_S / 2
    source.thaw()
    assert await fetch(home) == [CAME] * 4
    await assert_nothing_is_left(home, num_kept=4)


async def test_at_the_deadline_the_request_goes_on_with_what_it_has(
    world: DataWorld, home: Node, source: SourceProcess
) -> None:
    proxy = await held_by(world, source, Harm.HOLD, int(2.5 * SEGMENT_BYTES))
    results = await asyncio.wait_for(fetch(home, budget_s=0.8), 30)
    # Within the budget, on a machine that may be busy, at most two can have come.
    assert set(results[2:]) == {FallbackReason.LATE}
    await assert_nothing_is_left(home, num_kept=results.count(CAME))
    await proxy.close()
    await assert_source_lets_go(source)


async def test_a_home_that_vanishes_in_the_middle_leaves_no_lease(
    world: DataWorld, home: Node, source: SourceProcess
) -> None:
    proxy = await held_by(world, source, Harm.HOLD, int(0.5 * SEGMENT_BYTES))
    fetching = asyncio.create_task(fetch(home))
    await proxy.reached.wait()
    fetching.cancel()
    await world.stop(home)
    await proxy.close()
    await assert_source_lets_go(source)
    again = await world.start(num_pages=64, page_bytes=PAGE_BYTES, stall_s=STALL_S)
    world.directory.cards[SOURCE] = source.card
    assert await fetch(again) == [CAME] * 4
    await assert_nothing_is_left(again, num_kept=4)


async def test_a_home_that_stops_reading_loses_its_lease(world: DataWorld, home: Node, source: SourceProcess) -> None:
    # The source may send on for as long as buffers last, but not for ever: no byte for a second ends it.
    proxy = await held_by(world, source, Harm.HOLD, 1000)
    fetching = asyncio.create_task(fetch(home))
    await proxy.reached.wait()
    await assert_source_lets_go(source)
    await proxy.close()
    assert FallbackReason.SOURCE_GONE in await fetching
    await settled(home)
    assert home.store.is_clean


async def test_a_source_that_came_back_under_another_address_is_found(
    world: DataWorld, home: Node, source: SourceProcess
) -> None:
    old = source.card
    source.kill()
    fresh = SourceProcess("tcp", world.secret_file)
    world.directory.cards[SOURCE] = old
    world.directory.fresh[SOURCE] = fresh.card
    assert await fetch(home) == [CAME] * 4
    await assert_nothing_is_left(home, num_kept=4)
    fresh.close()


async def test_nobody_without_the_secret_gets_or_gives_anything(
    world: DataWorld, source: SourceProcess, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"fedcba9876543210-elsewhere")
    stranger = await world.start(num_pages=64, page_bytes=PAGE_BYTES, secret_file=str(other))
    assert await fetch(stranger) == [FallbackReason.SOURCE_GONE] * 4
    assert source.holds() == 0
    assert not stranger.store.entries
