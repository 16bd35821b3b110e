"""One cache without time: what a prompt finds, what it leaves, and what is lost on the way."""

from dataclasses import replace

from nebula_bench.split.cache import Cache, Served
from nebula_bench.split.cache_prompt import BLOCK_SIZE_TOKENS, CachePrompt, CacheSegment, cache_prompts
from nebula_bench.split.one_lru import OneLruStore
from nebula_bench.split.store_port import Store
from nebula_bench.workload import TraceRequest, TraceSegment
from nebula_protocol.ids import DomainId, EngineBlockHash, Origin, SegmentHash
from nebula_router.core.reuse_price import ReusePrice
from pic_worker.core.store import Kept, TwoClassStore
from pic_worker.core.store_entry import SegmentKey, StoredSegment

# A token takes 1 ms to compute and a quarter to load; two of each segment are computed again.
PRICE = ReusePrice(per_token_s=0.001, per_pair_s=0.0, load_s_per_token=0.00025, recompute_tokens=2, reused_ratio=1.0)


def cache_with(store_tokens: int, *, device_tokens: int = 1_600, prefix_ratio: float = 0.5) -> Cache:
    store = TwoClassStore(capacity_tokens=store_tokens, prefix_ratio=prefix_ratio, block_size_tokens=BLOCK_SIZE_TOKENS)
    return Cache(store, device_tokens=device_tokens, price=PRICE)


def serve(cache: Cache, prompt: CachePrompt) -> Served:
    """To the microsecond."""
    served = cache.serve(prompt)
    return replace(served, saved_s=round(served.saved_s, 6))


def segment(number: int, start: int, end: int) -> CacheSegment:
    return CacheSegment(SegmentHash(number.to_bytes(16, "big")), start, end)


def prompt(first_block: int, num_tokens: int, *segments: CacheSegment) -> CachePrompt:
    blocks = range(first_block, first_block + num_tokens // BLOCK_SIZE_TOKENS)
    return CachePrompt(num_tokens, tuple(map(EngineBlockHash, blocks)), segments)


def test_a_new_prompt_finds_nothing() -> None:
    served = cache_with(1_600).serve(prompt(0, 100, segment(1, 20, 60)))
    assert served == Served(prefix_tokens=0, segment_tokens=0, saved_s=0.0, held_segments=(False,))


def test_the_same_prompt_again_is_a_prefix_hit_of_whole_blocks() -> None:
    cache = cache_with(1_600)
    cache.serve(prompt(0, 100))
    # 96 of 100 tokens, from the device tier: nothing is loaded.
    assert serve(cache, prompt(0, 100)) == Served(96, 0, 0.096, ())


def test_of_a_prompt_of_whole_blocks_the_last_is_computed_for_its_last_token() -> None:
    cache = cache_with(1_600)
    cache.serve(prompt(0, 96))
    assert cache.serve(prompt(0, 96)).prefix_tokens == 80


def test_blocks_that_left_the_device_tier_are_loaded_from_the_store() -> None:
    cache = cache_with(1_600, device_tokens=160)
    cache.serve(prompt(0, 100))
    cache.serve(prompt(100, 160))
    # 96 ms less 24 ms for loading.
    assert serve(cache, prompt(0, 100)) == Served(96, 0, 0.072, ())


def test_a_segment_behind_another_prefix_is_a_hit_of_its_own() -> None:
    cache = cache_with(1_600)
    cache.serve(prompt(0, 100, segment(1, 20, 60)))
    served = serve(cache, prompt(100, 100, segment(1, 40, 80)))
    # 40 tokens, of which 38 are loaded: 38 * 0.75 ms.
    assert served == Served(0, 40, 0.0285, (True,))


def test_a_segment_counts_from_where_the_prefix_hit_ends() -> None:
    cache = cache_with(1_600)
    cache.serve(prompt(0, 100, segment(1, 20, 60)))
    shared = CachePrompt(100, (EngineBlockHash(0), EngineBlockHash(1), EngineBlockHash(70)), (segment(1, 20, 60),))
    served = serve(cache, shared)
    # Two blocks are 32 tokens; of the other 28 two are computed again: 32 ms + 26 * 0.75 ms.
    assert served == Served(32, 28, 0.0515, (True,))


def test_a_segment_that_is_its_own_prefix_is_not_kept_beside_it() -> None:
    cache = cache_with(1_600)
    cache.serve(prompt(0, 100, segment(1, 0, 60)))
    assert cache.serve(prompt(100, 100, segment(1, 40, 100))).held_segments == (False,)


def test_a_segment_that_the_prefix_covers_is_not_touched() -> None:
    cache = cache_with(100, prefix_ratio=0.0)
    cache.serve(prompt(0, 100, segment(1, 20, 60)))
    cache.serve(prompt(100, 100, segment(2, 20, 60)))
    cache.serve(prompt(0, 100, segment(1, 20, 60)))
    cache.serve(prompt(200, 100, segment(3, 20, 60)))
    # 100 tokens hold two segments of 40, and the first is still the older one.
    assert cache.take_losses() == ([], [SegmentKey(DomainId("trace"), SegmentHash((1).to_bytes(16, "big")))])


def test_blocks_are_lost_when_neither_tier_has_them() -> None:
    cache = cache_with(64, device_tokens=160, prefix_ratio=1.0)
    cache.serve(prompt(0, 96))
    cache.serve(prompt(100, 160))
    # Of six blocks that left the device tier, tails first, the store has room for the last four it is offered.
    assert cache.take_losses() == ([], [])
    cache.serve(prompt(200, 160))
    lost, _ = cache.take_losses()
    assert lost == [3, 2, 1, 0]
    assert cache.take_losses() == ([], [])


def test_equal_segment_ids_are_equal_segments_wherever_they_stand() -> None:
    passage, question = TraceSegment("passage", "p", 100), TraceSegment("user", "q", 40)
    short = TraceSegment("user", "s", 10)
    first, second = cache_prompts(
        [
            TraceRequest(workload="w", index=0, session="a", segments=(passage, question)),
            TraceRequest(workload="w", index=1, session="b", segments=(short, passage)),
        ]
    )
    assert (first.num_tokens, len(first.blocks)) == (140, 8)
    assert [(one.start, one.end) for one in first.segments] == [(0, 100), (100, 140)]
    # Ten tokens are too short for a segment of their own.
    assert [(one.start, one.end) for one in second.segments] == [(10, 110)]
    assert second.segments[0].segment_hash == first.segments[0].segment_hash
    assert not set(first.blocks) & set(second.blocks)


def filled(store: Store) -> Store:
    """A block, a segment of 40, and a second block, oldest first."""
    store.put_blocks((EngineBlockHash(1),))
    assert store.put_segment(stored(1, 40)).kept is Kept.NEW
    store.put_blocks((EngineBlockHash(2),))
    return store


def stored(number: int, num_tokens: int) -> StoredSegment:
    key = SegmentKey(DomainId("d"), SegmentHash(number.to_bytes(16, "big")))
    return StoredSegment(key, b"", num_tokens, Origin.IN_CONTEXT)


def test_in_one_lru_the_oldest_goes_whatever_its_class() -> None:
    store = filled(OneLruStore(capacity_tokens=72, block_size_tokens=16))
    # 16 + 40 + 16 tokens: a third block takes the first one's place, and a fourth the segment's.
    assert store.put_blocks((EngineBlockHash(3),)).evictions.blocks == (1,)
    assert store.put_blocks((EngineBlockHash(4),)).evictions.segments == (stored(1, 40).key,)
    assert not store.has_segment(stored(1, 40).key)


def test_one_lru_keeps_what_is_pinned_and_refuses_what_does_not_fit_beside_it() -> None:
    store = filled(OneLruStore(capacity_tokens=72, block_size_tokens=16))
    store.pin_segment(stored(1, 40).key)
    store.pin_blocks((EngineBlockHash(1),))
    assert store.put_segment(stored(2, 40)).kept is Kept.REFUSED
    assert store.put_blocks((EngineBlockHash(3), EngineBlockHash(4))).stored == (4,)
    store.unpin_blocks((EngineBlockHash(1),))
    store.unpin_segment(stored(1, 40).key)
    assert store.put_segment(stored(1, 40)).kept is Kept.ALREADY
    assert store.put_segment(stored(2, 32)).evictions.blocks == (4, 1)
