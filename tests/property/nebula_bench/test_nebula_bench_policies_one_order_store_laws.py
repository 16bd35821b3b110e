"""A store in one order behaves as the plain cache that knows no classes."""

from hypothesis import given
from hypothesis import strategies as st

from nebula_bench.policies.one_order_store import OneOrderStore
from nebula_bench.split.one_lru import OneLruStore
from nebula_protocol.ids import DomainId, EngineBlockHash, Origin, SegmentHash
from pic_worker.core.store_entry import SegmentKey, StoredSegment

BLOCK = 4
CAPACITY = 64
SEGMENT_TOKENS = (8, 12, 20)


def segment(number: int) -> StoredSegment:
    num_tokens = SEGMENT_TOKENS[number % len(SEGMENT_TOKENS)]
    key = SegmentKey(DomainId("d"), SegmentHash(bytes([number])))
    return StoredSegment(key, bytes(4 * num_tokens), num_tokens, Origin.IN_CONTEXT)


blocks = st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True)
numbers = st.integers(0, 7)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put_blocks"), blocks),
        st.tuples(st.just("put_segment"), numbers),
        st.tuples(st.just("find_segment"), numbers),
        st.tuples(st.just("use_blocks"), blocks),
        st.tuples(st.just("use_segment"), numbers),
    ),
    max_size=60,
)


def take(store: OneOrderStore | OneLruStore, step: tuple[str, object]) -> object:
    """What the step gave; using means pinning for a moment."""
    match step:
        case ("put_blocks", list(names)):
            put = store.put_blocks([EngineBlockHash(name) for name in names])
            return put.stored, set(put.evictions.blocks), set(put.evictions.segments)
        case ("put_segment", int(number)):
            stored = store.put_segment(segment(number))
            return stored.kept, set(stored.evictions.blocks), set(stored.evictions.segments)
        case ("find_segment", int(number)):
            return store.find_segment(segment(number).key) is not None
        case ("use_blocks", list(names)):
            here = [EngineBlockHash(name) for name in names if store.has_block(EngineBlockHash(name))]
            store.pin_blocks(here)
            store.unpin_blocks(here)
            return here
        case ("use_segment", int(number)):
            key = segment(number).key
            if store.has_segment(key):
                store.pin_segment(key)
                store.unpin_segment(key)
            return store.has_segment(key)
    raise AssertionError(step)


@given(steps)
def test_whatever_is_put_and_used_the_same_entries_give_way(taken: list[tuple[str, object]]) -> None:
    ours = OneOrderStore(capacity_tokens=CAPACITY, block_size_tokens=BLOCK)
    plain = OneLruStore(capacity_tokens=CAPACITY, block_size_tokens=BLOCK)
    for step in taken:
        assert take(ours, step) == take(plain, step)
        assert ours.used_tokens <= CAPACITY
