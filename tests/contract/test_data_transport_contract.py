"""The data plane between two workers: what both sides rely on, over a fake, TCP and NIXL."""

import asyncio
import time

import pytest
from support.data_node import DataWorld, Node, remote, request, settled
from support.data_store import PAGE_TOKENS, key_of, tokens_of

from nebula_protocol.data_plane import AskSegments
from nebula_protocol.ids import DomainId, Origin
from nebula_protocol.messages import WantedSegment
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason
from pic_worker.catalogue import LeasedSegment
from pic_worker.errors import PeerRefusedError
from pic_worker.segment_flight import Brought
from pic_worker.transport import Landed, SegmentMove

PATIENT_S = 10.0
HURRIED_S = 0.2


def put(node: Node, seed: int, num_tokens: int = 10) -> LeasedSegment:
    """A segment of its own tokens with KV of its own, at a position of its own."""
    segment = node.store.put(tokens_of(1000 * seed, num_tokens), stored_position=seed)
    node.write(segment, seed)
    return segment


async def fetch(home: Node, *wanted: object, budget_s: float = PATIENT_S) -> list[object]:
    async with home.fetcher.bring(request(), list(wanted), budget_s) as results:  # type: ignore[arg-type]
        return list(results.values())


async def test_a_segment_of_another_worker_arrives_as_it_is_there(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    segment = put(source, 7)
    async with home.fetcher.bring(request(), [remote(segment, source)], PATIENT_S) as results:
        assert results == {segment.key: Brought(Source.FETCH, Origin.ALONE)}
        assert home.store.num_pins == 1
    copy = home.store.entries[segment.key].segment
    assert (copy.token_bytes, copy.stored_position, copy.origin) == (segment.token_bytes, 7, Origin.ALONE)
    assert home.has(segment.key, 7)
    await settled(source)
    await settled(home)
    assert source.store.is_clean
    assert home.store.is_clean


async def test_many_segments_of_many_lengths_come_in_one_transfer(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    segments = [put(source, seed, num_tokens) for seed, num_tokens in enumerate((1, 3, 4, 5, 33, 64, 130), start=1)]
    results = await fetch(home, *(remote(segment, source) for segment in segments))
    assert results == [Brought(Source.FETCH, Origin.ALONE)] * 7
    assert all(home.has(segment.key, seed) for seed, segment in enumerate(segments, start=1))


async def test_segments_of_several_sources_come_at_once(world: DataWorld) -> None:
    home = await world.start()
    sources = [await world.start() for _ in range(3)]
    segments = [put(source, seed) for seed, source in enumerate(sources, start=1)]
    wanted = [remote(segment, source) for segment, source in zip(segments, sources, strict=True)]
    assert await fetch(home, *wanted) == [Brought(Source.FETCH, Origin.ALONE)] * 3
    assert all(home.has(segment.key, seed) for seed, segment in enumerate(segments, start=1))


async def test_a_segment_that_is_not_there_is_answered_at_once_beside_those_that_are(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    there, evicted = put(source, 1), put(source, 2)
    source.store.evict(evicted.key)
    began_s = time.monotonic()
    results = await fetch(home, remote(there, source), remote(evicted, source))
    assert results == [Brought(Source.FETCH, Origin.ALONE), FallbackReason.NOT_THERE]
    assert time.monotonic() - began_s < PATIENT_S / 2
    assert evicted.key not in home.store.entries


async def test_a_segment_of_another_tenant_is_not_there(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    tenant = DomainId("0123456789abcdef/fedcba9876543210")
    segment = source.store.put(tokens_of(5, 8), domain_id=tenant)
    plain = LeasedSegment(key_of(segment.token_bytes), segment.token_bytes, Origin.ALONE, 0, segment.pages)
    assert await fetch(home, remote(plain, source)) == [FallbackReason.NOT_THERE]
    assert await fetch(home, remote(segment, source)) == [Brought(Source.FETCH, Origin.ALONE)]


async def test_a_segment_that_is_being_computed_is_waited_for(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    tokens = tokens_of(1, 9)
    key = key_of(tokens)
    source.arrivals.begin(key)
    coming = LeasedSegment(key, tokens, Origin.ALONE, 0, ())
    fetching = asyncio.create_task(fetch(home, remote(coming, source, Source.COMPUTE_AT)))
    await asyncio.sleep(0.1)
    assert not fetching.done()
    source.write(source.store.put(tokens), 3)
    source.arrivals.stored(key)
    source.arrivals.end(key)
    assert await fetching == [Brought(Source.COMPUTE_AT, Origin.ALONE)]
    assert home.has(key, 3)


async def test_what_is_there_already_does_not_wait_for_what_is_computed(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    # The first transfer between two workers may take longer than the budget below.
    await fetch(home, remote(put(source, 9), source))
    there, tokens = put(source, 1), tokens_of(1, 9)
    source.arrivals.begin(key_of(tokens))
    coming = LeasedSegment(key_of(tokens), tokens, Origin.ALONE, 0, ())
    results = await fetch(home, remote(there, source), remote(coming, source, Source.JOIN), budget_s=1.0)
    assert results == [Brought(Source.FETCH, Origin.ALONE), FallbackReason.LATE]
    source.arrivals.end(key_of(tokens))


async def test_a_join_of_what_nobody_computes_is_declined_after_a_grace(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    tokens = tokens_of(1, 9)
    nobody = LeasedSegment(key_of(tokens), tokens, Origin.ALONE, 0, ())
    began_s = time.monotonic()
    assert await fetch(home, remote(nobody, source, Source.JOIN)) == [FallbackReason.NOT_THERE]
    assert 0.05 <= time.monotonic() - began_s < PATIENT_S / 2


async def test_a_computation_that_is_given_up_is_declined_at_once(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    tokens = tokens_of(1, 9)
    source.arrivals.begin(key_of(tokens))
    coming = LeasedSegment(key_of(tokens), tokens, Origin.ALONE, 0, ())
    fetching = asyncio.create_task(fetch(home, remote(coming, source, Source.JOIN)))
    await asyncio.sleep(0.1)
    source.arrivals.end(key_of(tokens))
    assert await fetching == [FallbackReason.NOT_THERE]


async def test_a_worker_that_is_not_there_is_gone_and_leaves_nothing(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    segment = put(source, 1)
    await world.stop(source)
    assert await fetch(home, remote(segment, source)) == [FallbackReason.SOURCE_GONE]
    await settled(home)
    assert home.store.is_clean
    assert home.store.num_used_pages == 0


async def test_without_room_nothing_is_copied_and_the_request_computes(world: DataWorld) -> None:
    source, home = await world.start(), await world.start(num_pages=4)
    small, large = put(source, 1, 8), put(source, 2, 5 * PAGE_TOKENS)
    results = await fetch(home, remote(small, source), remote(large, source))
    assert results == [Brought(Source.FETCH, Origin.ALONE), FallbackReason.NO_ROOM]
    assert home.has(small.key, 1)


async def test_other_tokens_under_the_same_hash_are_refused(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    segment = put(source, 1, 8)
    wrong = LeasedSegment(segment.key, tokens_of(77, 8), Origin.ALONE, 0, ())
    assert await fetch(home, remote(wrong, source)) == [FallbackReason.TOKENS_DIFFER]
    assert not home.store.entries


async def test_a_segment_that_is_here_already_is_not_copied(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    segment = put(source, 1, 8)
    own = home.store.put(segment.token_bytes)
    home.write(own, 42)
    assert await fetch(home, remote(segment, source)) == [Brought(Source.LOCAL, Origin.ALONE)]
    assert home.has(segment.key, 42)


async def test_two_requests_for_one_segment_cause_one_copy(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    segment = put(source, 1, 100)
    results = await asyncio.gather(*(fetch(home, remote(segment, source)) for _ in range(2)))
    assert results == [[Brought(Source.FETCH, Origin.ALONE)]] * 2
    assert home.store.num_used_pages == 25
    await settled(home)
    assert home.store.is_clean


async def test_a_copy_that_is_not_to_be_kept_goes_when_the_request_has_used_it(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    segment = put(source, 1)
    async with home.fetcher.bring(request(), [remote(segment, source, keep=False)], PATIENT_S):
        assert home.has(segment.key, 1)
    await settled(home)
    await asyncio.sleep(0)
    assert not home.store.entries


async def test_a_fetch_that_was_slow_is_not_tried_where_computing_is_quick(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    first, second = put(source, 1), put(source, 2)
    assert await fetch(home, remote(first, source, compute_s=1e-9)) == [Brought(Source.FETCH, Origin.ALONE)]
    assert await fetch(home, remote(second, source, compute_s=1e-9)) == [FallbackReason.VETO]
    assert await fetch(home, remote(second, source, compute_s=100.0)) == [Brought(Source.FETCH, Origin.ALONE)]


async def test_a_request_that_is_cancelled_leaves_nothing(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    tokens = tokens_of(1, 9)
    source.arrivals.begin(key_of(tokens))
    coming = LeasedSegment(key_of(tokens), tokens, Origin.ALONE, 0, ())
    there = put(source, 1, 400)
    fetching = asyncio.create_task(fetch(home, remote(coming, source, Source.JOIN), remote(there, source)))
    await asyncio.sleep(0.01)
    fetching.cancel()
    await asyncio.wait((fetching,))
    await settled(home)
    await settled(source)
    assert home.store.is_clean
    assert source.store.is_clean


async def test_a_worker_of_another_geometry_is_refused(world: DataWorld) -> None:
    source, home = await world.start(page_bytes=8192), await world.start()
    segment = put(source, 1)
    with pytest.raises(PeerRefusedError):
        async with home.transport.open(source.card):
            pass
    assert await fetch(home, remote(segment, source)) == [FallbackReason.SOURCE_GONE]


async def test_a_lease_that_nobody_ends_ends_by_itself_and_its_segment_is_not_taken_any_more(world: DataWorld) -> None:
    source, home = await world.start(lease_s=HURRIED_S), await world.start()
    expiring = asyncio.create_task(source.segments.run())
    segment = put(source, 1, 9)
    wanted = WantedSegment(segment_hash=segment.key.segment_hash, num_tokens=9)
    ask = AskSegments(request_id=request(), domain_id=segment.key.domain_id, wait_s=0.0, segments=(wanted,))
    landings: list[tuple[int, Landed]] = []
    async with home.transport.open(source.card) as session:
        offered = [offer async for offers in session.ask(ask) for offer in offers.there]
        assert source.store.num_pins == 1
        while source.store.num_pins:
            await asyncio.sleep(0.01)
        move = SegmentMove(0, tuple(source.store.entries[segment.key].segment.pages), tuple(home.store.free[:3]))
        await session.take([move], lambda index, landed: landings.append((index, landed)))
    assert [offer.index for offer in offered] == [0]
    assert landings == [(0, Landed.LEASE_ENDED)]
    assert source.store.is_clean
    expiring.cancel()
