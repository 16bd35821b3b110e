"""NIXL reads whose source freezes or dies under them: what may still be written to is not given to anybody else."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest
from support.data_node import DataWorld, Node, request, settled
from support.data_source import NUM_SEGMENTS, NUM_TOKENS, SourceProcess, wanted
from support.data_source_process import PAGE_BYTES, SOURCE, tokens_of_segment
from support.data_store import key_of

from nebula_protocol.ids import Origin, WorkerId
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason
from pic_worker.adapters.nixl.transport import NixlTransport
from pic_worker.catalogue import IncomingSegment, Reserved, Unreserved
from pic_worker.segment_flight import Brought, SegmentResult
from pic_worker.transport import SegmentMove

pytest.importorskip("nixl._api", reason="NIXL is not installed")

pytestmark = pytest.mark.integration

CAME = Brought(Source.FETCH, Origin.ALONE)


@pytest.fixture
def _between_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one machine NIXL reads another process's memory without asking it; between two it cannot."""
    monkeypatch.setenv("UCX_TLS", "tcp")


@pytest.fixture
async def world(tmp_path: Path, _between_machines: None) -> AsyncIterator[DataWorld]:
    world = DataWorld("nixl", tmp_path)
    yield world
    await world.close()


@pytest.fixture
async def home(world: DataWorld) -> Node:
    return await world.start(num_pages=64, page_bytes=PAGE_BYTES)


@pytest.fixture
def source(world: DataWorld) -> Iterator[SourceProcess]:
    process = SourceProcess("nixl", world.secret_file, lease_s=5.0)
    world.directory.cards[SOURCE] = process.card
    yield process
    process.close()


def once_reserved(home: Node, harm: Callable[[], None]) -> None:
    """Does it when the home has room for what it was offered, and is about to read."""
    reserve = home.store.reserve

    async def reserve_then_harm(segments: Sequence[IncomingSegment]) -> tuple[Reserved | Unreserved, ...]:
        reserved = await reserve(segments)
        harm()
        return reserved

    home.store.reserve = reserve_then_harm  # type: ignore[method-assign]


async def fetch(home: Node, budget_s: float) -> list[SegmentResult]:
    async with home.fetcher.bring(request(), wanted(), budget_s) as results:
        return list(results.values())


def has_all(home: Node) -> bool:
    keys = [key_of(tokens_of_segment(seed, NUM_TOKENS)) for seed in range(1, NUM_SEGMENTS + 1)]
    return all(home.has(key, seed) for seed, key in enumerate(keys, start=1))


def once_read(home: Node, harm: Callable[[SegmentMove], None]) -> None:
    """Does it to the second segment when all bytes have come, before they are looked at."""
    assert isinstance(home.transport, NixlTransport)
    pages = home.transport._pages
    read = pages.read

    async def read_then_harm(source_id: WorkerId, attachment: bytes, moves: Sequence[SegmentMove]) -> None:
        await read(source_id, attachment, moves)
        harm(moves[1])

    pages.read = read_then_harm  # type: ignore[method-assign]


async def source_lets_go(source: SourceProcess) -> None:
    end_s = time.monotonic() + 20
    while source.holds():
        assert time.monotonic() < end_s
        await asyncio.sleep(0.05)


async def test_segments_are_read_from_another_process(home: Node, source: SourceProcess) -> None:
    assert await fetch(home, 30.0) == [CAME] * 4
    assert has_all(home)
    await settled(home)
    assert home.store.is_clean
    await source_lets_go(source)


async def test_a_spoilt_byte_is_noticed_and_its_segment_alone_refused(home: Node, source: SourceProcess) -> None:
    def spoil(move: SegmentMove) -> None:
        home.memory.view(1, move.home_pages[-1], 1)[-1] ^= 1

    once_read(home, spoil)
    assert await fetch(home, 30.0) == [CAME, FallbackReason.DAMAGED, CAME, CAME]
    await settled(home)
    assert home.store.is_clean
    # Four pages a segment.
    assert (len(home.store.entries), len(home.store.free)) == (3, 64 - 3 * 4)
    await source_lets_go(source)


async def test_room_that_a_frozen_source_may_write_to_stays_taken_until_it_cannot(
    home: Node, source: SourceProcess
) -> None:
    once_reserved(home, source.freeze)
    began_s = time.monotonic()
    assert await fetch(home, 3.0) == [FallbackReason.LATE] * 4
    # The request went on.
    assert time.monotonic() - began_s < 10.0
    assert (home.fetcher.num_running, len(home.store.reservations)) == (1, 4)
    source.thaw()
    await settled(home)
    assert home.fetcher.num_running == 0
    assert home.store.is_clean
    assert home.store.num_used_pages + len(home.store.free) == 64
    await source_lets_go(source)


async def test_a_source_that_dies_under_a_read_is_gone_and_its_room_free(home: Node, source: SourceProcess) -> None:
    assert await fetch(home, 30.0) == [CAME] * 4
    await settled(home)
    for segment in wanted():
        home.store.evict(segment.key)
    once_reserved(home, source.kill)
    assert set(await fetch(home, 30.0)) == {FallbackReason.SOURCE_GONE}
    await settled(home)
    assert home.store.is_clean
    assert len(home.store.free) == 64
