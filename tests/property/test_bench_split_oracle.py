"""Stores that must behave as one least-recently-used cache, against libCacheSim's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from random import Random

import pytest

from nebula_bench.split.cache_prompt import BLOCK_SIZE_TOKENS, DOMAIN
from nebula_bench.split.one_lru import OneLruStore
from nebula_bench.split.store_port import Store
from nebula_protocol.ids import EngineBlockHash, Origin, SegmentHash
from pic_worker.core.store import TwoClassStore
from pic_worker.core.store_entry import SegmentKey, StoredSegment


@dataclass(frozen=True, slots=True)
class Case:
    seed: int
    num_objects: int
    skew: float
    """Popularity falls with rank to this power."""
    capacity_tokens: int
    num_hits: int
    """Counted by libCacheSim 0.3.5 (`LRU`) over 20,000 accesses."""

    def accesses(self) -> Iterator[int]:
        random = Random(self.seed)
        weights = list(accumulate((rank + 1) ** -self.skew for rank in range(self.num_objects)))
        for _ in range(20_000):
            yield random.choices(range(self.num_objects), cum_weights=weights)[0]


BLOCKS = Case(seed=1, num_objects=2_000, skew=0.8, capacity_tokens=8_000, num_hits=11_577)
SEGMENTS = [
    Case(seed=2, num_objects=500, skew=0.8, capacity_tokens=20_000, num_hits=8_930),
    Case(seed=3, num_objects=500, skew=0.5, capacity_tokens=60_000, num_hits=11_211),
]


def segment_tokens(number: int) -> int:
    return 32 + number * 37 % 480


def one_lru(case: Case) -> Store:
    return OneLruStore(capacity_tokens=case.capacity_tokens, block_size_tokens=BLOCK_SIZE_TOKENS)


def two_classes(prefix_ratio: float) -> Callable[[Case], Store]:
    return lambda case: TwoClassStore(
        capacity_tokens=case.capacity_tokens, prefix_ratio=prefix_ratio, block_size_tokens=BLOCK_SIZE_TOKENS
    )


STORES = [
    pytest.param(one_lru, id="one_lru"),
    # A class that is alone has all of the store at any split.
    *[pytest.param(two_classes(ratio), id=f"split-{ratio}") for ratio in (0.0, 0.3, 1.0)],
]


@pytest.mark.parametrize("make_store", STORES)
def test_blocks_alone_have_the_hits_of_one_lru(make_store: Callable[[Case], Store]) -> None:
    store, num_hits = make_store(BLOCKS), 0
    for number in BLOCKS.accesses():
        num_hits += store.has_block(EngineBlockHash(number))
        store.put_blocks((EngineBlockHash(number),))
    assert num_hits == BLOCKS.num_hits


@pytest.mark.parametrize("case", SEGMENTS, ids=lambda case: f"seed-{case.seed}")
@pytest.mark.parametrize("make_store", STORES)
def test_segments_alone_have_the_hits_of_one_lru(make_store: Callable[[Case], Store], case: Case) -> None:
    store, num_hits = make_store(case), 0
    for number in case.accesses():
        key = SegmentKey(DOMAIN, SegmentHash(number.to_bytes(16, "big")))
        if store.find_segment(key) is not None:
            num_hits += 1
        else:
            store.put_segment(StoredSegment(key, b"", segment_tokens(number), Origin.IN_CONTEXT))
    assert num_hits == case.num_hits


if find_spec("libcachesim") is not None:

    def libcachesim_hits(case: Case, size_of: Callable[[int], int]) -> int:
        library = import_module("libcachesim")
        cache, num_hits = library.LRU(cache_size=case.capacity_tokens), 0
        for number in case.accesses():
            request = library.Request()
            request.obj_id, request.obj_size = number, size_of(number)
            num_hits += cache.get(request)
        return num_hits

    def test_the_recorded_hits_are_those_that_libcachesim_counts() -> None:
        assert libcachesim_hits(BLOCKS, lambda _: BLOCK_SIZE_TOKENS) == BLOCKS.num_hits
        for case in SEGMENTS:
            assert libcachesim_hits(case, segment_tokens) == case.num_hits
