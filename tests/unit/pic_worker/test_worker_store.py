import pytest

from nebula_protocol.ids import DomainId, EngineBlockHash, Origin, SegmentHash
from pic_worker.core.store import Kept, SegmentPut, TwoClassStore
from pic_worker.core.store_entry import Evictions, SegmentKey, StoredSegment

BLOCK_TOKENS = 4


def key(name: str) -> SegmentKey:
    return SegmentKey(DomainId("d"), SegmentHash(name.encode().ljust(16)))


def segment(name: str, num_tokens: int, origin: Origin = Origin.IN_CONTEXT, token_bytes: bytes = b"") -> StoredSegment:
    return StoredSegment(key(name), token_bytes or name.encode(), num_tokens, origin)


def blocks(*numbers: int) -> tuple[EngineBlockHash, ...]:
    return tuple(EngineBlockHash(number) for number in numbers)


def store_of(capacity_tokens: int, prefix_ratio: float) -> TwoClassStore:
    return TwoClassStore(capacity_tokens=capacity_tokens, prefix_ratio=prefix_ratio, block_size_tokens=BLOCK_TOKENS)


@pytest.mark.parametrize("prefix_ratio", [0.0, 0.3, 1.0])
def test_blocks_alone_are_one_lru_over_the_whole_capacity_at_any_split(prefix_ratio: float) -> None:
    store = store_of(12, prefix_ratio)
    assert store.put_blocks(blocks(1, 2, 3)).stored == blocks(1, 2, 3)
    store.put_blocks(blocks(1))
    put = store.put_blocks(blocks(4))
    assert put.evictions == Evictions(blocks=blocks(2))
    assert store.used_tokens == 12


@pytest.mark.parametrize("prefix_ratio", [0.0, 0.3, 1.0])
def test_segments_alone_are_one_lru_over_the_whole_capacity_at_any_split(prefix_ratio: float) -> None:
    store = store_of(12, prefix_ratio)
    store.put_segment(segment("a", 6))
    store.put_segment(segment("b", 6))
    store.find_segment(key("a"))
    put = store.put_segment(segment("c", 5))
    assert put == SegmentPut(Kept.NEW, Evictions(segments=(key("b"),)))


def test_a_class_within_its_room_takes_back_what_the_other_borrowed() -> None:
    store = store_of(16, 0.5)
    store.put_blocks(blocks(1, 2, 3, 4))
    put = store.put_segment(segment("a", 8))
    assert put.evictions.blocks == blocks(1, 2)
    assert (store.prefix_used_tokens, store.segment_used_tokens) == (8, 8)


def test_a_class_over_its_room_drives_out_its_own_oldest() -> None:
    store = store_of(16, 0.5)
    store.put_blocks(blocks(1, 2))
    store.put_segment(segment("a", 8))
    put = store.put_segment(segment("b", 4))
    assert put.evictions == Evictions(segments=(key("a"),))
    assert store.put_blocks(blocks(3)).evictions == Evictions()


def test_an_entry_larger_than_its_classes_room_is_refused_when_the_other_class_has_its_own_in_use() -> None:
    store = store_of(16, 0.5)
    store.put_blocks(blocks(1, 2))
    store.put_segment(segment("a", 4))
    assert store.put_segment(segment("b", 9)) == SegmentPut(Kept.REFUSED)
    assert store.find_segment(key("a")) is not None


def test_at_split_one_segments_live_only_in_room_that_blocks_leave() -> None:
    store = store_of(16, 1.0)
    assert store.put_segment(segment("a", 8)).kept is Kept.NEW
    store.put_blocks(blocks(1, 2))
    assert store.put_blocks(blocks(3)).evictions == Evictions(segments=(key("a"),))
    store.put_blocks(blocks(4))
    assert store.put_segment(segment("b", 1)).kept is Kept.REFUSED


def test_moving_the_split_evicts_nothing_until_room_is_wanted() -> None:
    store = store_of(16, 1.0)
    store.put_blocks(blocks(1, 2, 3, 4))
    store.set_split(0.25)
    assert store.used_tokens == 16
    assert store.put_segment(segment("a", 12)).evictions.blocks == blocks(1, 2, 3)


def test_pinned_entries_are_never_evicted() -> None:
    store = store_of(12, 0.0)
    store.put_segment(segment("a", 6))
    store.put_segment(segment("b", 6))
    store.pin_segment(key("a"))
    assert store.put_segment(segment("c", 6)).evictions.segments == (key("b"),)
    store.pin_segment(key("c"))
    assert store.put_segment(segment("d", 1)).kept is Kept.REFUSED
    store.unpin_segment(key("a"))
    assert store.put_segment(segment("d", 1)).evictions.segments == (key("a"),)


def test_an_entry_stays_pinned_until_its_last_pin_goes() -> None:
    store = store_of(6, 0.0)
    store.put_segment(segment("a", 6))
    store.pin_segment(key("a"))
    store.pin_segment(key("a"))
    store.unpin_segment(key("a"))
    assert store.pinned_tokens == 6
    store.unpin_segment(key("a"))
    assert store.pinned_tokens == 0


def test_a_copy_in_context_replaces_one_computed_alone_and_not_the_other_way() -> None:
    store = store_of(12, 0.0)
    store.put_segment(segment("a", 6, Origin.ALONE))
    assert store.put_segment(segment("a", 6, Origin.ALONE)).kept is Kept.ALREADY
    assert store.put_segment(segment("a", 6, Origin.IN_CONTEXT)).kept is Kept.NEW
    assert store.put_segment(segment("a", 6, Origin.ALONE)).kept is Kept.ALREADY
    found = store.find_segment(key("a"))
    assert found is not None
    assert found.origin is Origin.IN_CONTEXT
    assert store.segment_used_tokens == 6


def test_other_tokens_under_the_same_hash_are_refused() -> None:
    store = store_of(12, 0.0)
    store.put_segment(segment("a", 4, token_bytes=b"these"))
    assert store.put_segment(segment("a", 4, token_bytes=b"those")).kept is Kept.REFUSED
    found = store.find_segment(key("a"))
    assert found is not None
    assert found.token_bytes == b"these"


def test_of_a_run_of_blocks_longer_than_the_room_the_last_ones_stay() -> None:
    store = store_of(8, 0.5)
    put = store.put_blocks(blocks(1, 2, 3))
    assert put.stored == blocks(2, 3)
    assert not store.has_block(EngineBlockHash(1))


def test_clearing_spares_what_is_in_use() -> None:
    store = store_of(16, 0.5)
    store.put_blocks(blocks(1, 2))
    store.put_segment(segment("a", 4))
    store.put_segment(segment("b", 4))
    store.pin_blocks(blocks(1))
    store.pin_segment(key("b"))
    assert store.clear() == Evictions(blocks(2), (key("a"),))
    assert store.used_tokens == 8


def test_a_store_without_capacity_keeps_nothing() -> None:
    store = store_of(0, 0.5)
    assert store.put_blocks(blocks(1)).stored == ()
    assert store.put_segment(segment("a", 1)).kept is Kept.REFUSED
