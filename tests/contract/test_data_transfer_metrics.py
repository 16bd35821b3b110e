"""What a worker counts of its data plane, over a fake, TCP and NIXL."""

import asyncio
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.data_node import DataWorld, Node, kv_bytes_per_token, remote, request, settled
from support.data_store import PAGE_TOKENS, key_of, tokens_of

from nebula_protocol.ids import Origin
from nebula_protocol.plan import Source
from pic_worker.catalogue import LeasedSegment
from pic_worker.core.transfer_outcome import TransferOutcome
from pic_worker.metrics import Direction, LeaseHolder, WorkerMetricName
from pic_worker.segment_flight import RemoteSegment

PATIENT_S = 10.0


def put(node: Node, seed: int, num_tokens: int = 10) -> LeasedSegment:
    segment = node.store.put(tokens_of(1000 * seed, num_tokens))
    node.write(segment, seed)
    return segment


def value(node: Node, name: str, **labels: str) -> float:
    """Of the sample with at least these labels."""
    for family in text_string_to_metric_families(generate_latest(node.metrics.registry).decode()):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise KeyError(name)


def ends(node: Node) -> dict[TransferOutcome, int]:
    """Transfers by outcome, those that happened."""
    counts = {one: int(value(node, WorkerMetricName.TRANSFERS, outcome=one)) for one in TransferOutcome}
    return {outcome: count for outcome, count in counts.items() if count}


def num_bytes(node: Node, direction: Direction) -> float:
    return value(node, WorkerMetricName.TRANSFER_BYTES, direction=direction)


def pins(node: Node) -> tuple[float, float, float]:
    """Leases for peers, leases for requests, reservations."""
    of_peers, of_requests = (value(node, WorkerMetricName.LEASES, holder=holder) for holder in LeaseHolder)
    return of_peers, of_requests, value(node, WorkerMetricName.RESERVATIONS)


async def bring(home: Node, *wanted: RemoteSegment, budget_s: float = PATIENT_S) -> None:
    async with home.fetcher.bring(request(), wanted, budget_s):
        pass


async def test_all_counts_are_there_at_zero_before_the_first_transfer(world: DataWorld) -> None:
    node = await world.start()
    assert ends(node) == {}
    assert [num_bytes(node, direction) for direction in Direction] == [0, 0]
    assert value(node, f"{WorkerMetricName.TRANSFER_SECONDS}_count", transport=world.kind) == 0
    assert pins(node) == (0, 0, 0)


async def test_what_one_worker_gives_is_what_the_other_gets(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    await bring(home, remote(put(source, 1, 10), source), remote(put(source, 2, 33), source))
    await settled(home)
    assert ends(home) == {TransferOutcome.FETCHED: 2}
    assert ends(source) == {}
    assert num_bytes(home, Direction.IN) == num_bytes(source, Direction.OUT) == 43 * kv_bytes_per_token()
    assert num_bytes(home, Direction.OUT) == num_bytes(source, Direction.IN) == 0
    # Both were there, so they were copied together.
    assert value(home, f"{WorkerMetricName.TRANSFER_SECONDS}_count") == 1
    assert value(home, f"{WorkerMetricName.TRANSFER_SECONDS}_sum") > 0
    assert value(home, WorkerMetricName.TRANSFERS, transport=world.kind, outcome="fetched") == 2


async def test_segments_that_are_waited_for_are_told_by_who_wanted_them_computed(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    for seed, how in ((1, Source.JOIN), (2, Source.COMPUTE_AT)):
        await bring(home, remote(put(source, seed), source, how))
    assert ends(home) == {TransferOutcome.JOINED: 1, TransferOutcome.HELPED: 1}


async def test_each_reason_for_computing_instead_is_counted(world: DataWorld) -> None:
    source, home = await world.start(), await world.start(num_pages=12)
    await bring(home, remote(put(source, 1), source, compute_s=100.0))
    assert ends(home) == {TransferOutcome.FETCHED: 1}
    evicted, here, large = put(source, 2), put(source, 3), put(source, 4, 12 * PAGE_TOKENS)
    source.store.evict(evicted.key)
    home.store.put(here.token_bytes)
    other_tokens = LeasedSegment(put(source, 5).key, tokens_of(77, 10), Origin.ALONE, 0, ())
    wanted = [remote(segment, source) for segment in (evicted, here, large, other_tokens)]
    await bring(home, *wanted, remote(put(source, 6), source, compute_s=1e-12))
    tokens = tokens_of(8_000, 9)
    source.arrivals.begin(key_of(tokens))
    coming = LeasedSegment(key_of(tokens), tokens, Origin.ALONE, 0, ())
    await bring(home, remote(coming, source, Source.JOIN), budget_s=0.05)
    source.arrivals.end(key_of(tokens))
    assert ends(home) == {
        TransferOutcome.FETCHED: 1,
        TransferOutcome.NOT_THERE: 1,
        TransferOutcome.ALREADY_HERE: 1,
        TransferOutcome.NO_ROOM: 1,
        TransferOutcome.TOKENS_DIFFER: 1,
        TransferOutcome.VETO: 1,
        TransferOutcome.LATE: 1,
    }
    assert num_bytes(home, Direction.IN) == 10 * kv_bytes_per_token()


async def test_two_requests_on_one_transfer_count_it_once(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    segment = put(source, 1, 100)
    await asyncio.gather(*(bring(home, remote(segment, source)) for _ in range(2)))
    assert ends(home) == {TransferOutcome.FETCHED: 1}


async def test_a_source_that_is_not_there_is_counted(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    segment = put(source, 1)
    await world.stop(source)
    del world.directory.cards[source.worker_id]
    await bring(home, remote(segment, source))
    assert ends(home) == {TransferOutcome.SOURCE_GONE: 1}


async def test_pins_are_seen_while_they_last(world: DataWorld) -> None:
    source, home = await world.start(), await world.start()
    segment = put(source, 1)
    async with home.fetcher.bring(request(), [remote(segment, source)], PATIENT_S):
        assert pins(home) == (0, 1, 0)
    await settled(source)
    await settled(home)
    assert pins(source) == pins(home) == (0, 0, 0)


async def test_a_segment_that_arrives_damaged_is_counted_as_such(tmp_path: Path) -> None:
    world = DataWorld("fake", tmp_path)
    source, home = await world.start(), await world.start()
    world.network.is_damaging = True
    await bring(home, remote(put(source, 1), source))
    assert ends(home) == {TransferOutcome.DAMAGED: 1}
    assert num_bytes(home, Direction.IN) == 0
    await settled(home)
    assert pins(home) == (0, 0, 0)
