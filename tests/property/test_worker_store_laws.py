"""The two-class store and the device pool against naive models."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nebula_protocol.ids import DomainId, EngineBlockHash, Origin, SegmentHash
from pic_worker.core.device_pool import BlockTable, DevicePool
from pic_worker.core.store import Kept, TwoClassStore
from pic_worker.core.store_entry import SegmentKey, StoredSegment

BLOCK_TOKENS = 2
CAPACITY_TOKENS = 20


def segment_of(number: int, num_tokens: int) -> StoredSegment:
    key = SegmentKey(DomainId("d"), SegmentHash(number.to_bytes(16, "big")))
    return StoredSegment(key, number.to_bytes(4, "big"), num_tokens, Origin.ALONE)


def sizes_of(number: int) -> int:
    """A segment's length follows from its content."""
    return 1 + number % 7


class PlainLru:
    """Names and sizes in a list, oldest first."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self.pinned: dict[int, int] = {}

    @property
    def used(self) -> int:
        return sum(size for _, size in self.entries)

    def has(self, name: int) -> bool:
        return any(name == entry for entry, _ in self.entries)

    def touch(self, name: int) -> None:
        self.entries.sort(key=lambda entry: entry[0] == name)

    def idle(self) -> list[tuple[int, int]]:
        return [entry for entry in self.entries if entry[0] not in self.pinned]

    def evict(self) -> int:
        oldest = self.idle()[0]
        self.entries.remove(oldest)
        return oldest[0]


class ModelStore:
    """The documented policy, one entry at a time."""

    def __init__(self) -> None:
        self.blocks, self.segments = PlainLru(), PlainLru()
        self.prefix_quota = 0

    def put(self, own: PlainLru, own_quota: int, other: PlainLru, name: int, size: int) -> list[tuple[str, int]] | None:
        """What gave way, or None when the entry is refused."""
        other_quota = CAPACITY_TOKENS - own_quota
        idle_own = sum(s for _, s in own.idle())
        idle_other = sum(s for _, s in other.idle())
        free = CAPACITY_TOKENS - own.used - other.used
        if free + idle_own + min(idle_other, max(0, other.used - other_quota)) < size:
            return None
        evicted: list[tuple[str, int]] = []
        while own.used + other.used + size > CAPACITY_TOKENS:
            may_take_back = other.used > other_quota and bool(other.idle())
            if may_take_back and (own.used + size <= own_quota or not own.idle()):
                evicted.append(("other", other.evict()))
            else:
                evicted.append(("own", own.evict()))
        own.entries.append((name, size))
        return evicted


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = TwoClassStore(capacity_tokens=CAPACITY_TOKENS, prefix_ratio=0.0, block_size_tokens=BLOCK_TOKENS)
        self.model = ModelStore()

    @rule(ratio=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    def set_split(self, ratio: float) -> None:
        self.store.set_split(ratio)
        self.model.prefix_quota = round(CAPACITY_TOKENS * ratio)

    @rule(number=st.integers(0, 15))
    def put_block(self, number: int) -> None:
        put = self.store.put_blocks([EngineBlockHash(number)])
        model = self.model
        if model.blocks.has(number):
            if number not in model.blocks.pinned:
                model.blocks.touch(number)
            assert put.stored == ()
            return
        evicted = model.put(model.blocks, model.prefix_quota, model.segments, number, BLOCK_TOKENS)
        assert (put.stored == (number,)) is (evicted is not None)
        assert list(put.evictions.blocks) == [name for kind, name in evicted or [] if kind == "own"]
        assert len(put.evictions.segments) == len([1 for kind, _ in evicted or [] if kind == "other"])

    @rule(number=st.integers(100, 115))
    def put_segment(self, number: int) -> None:
        size = sizes_of(number)
        put = self.store.put_segment(segment_of(number, size))
        model = self.model
        if model.segments.has(number):
            if number not in model.segments.pinned:
                model.segments.touch(number)
            assert put.kept is Kept.ALREADY
            return
        quota = CAPACITY_TOKENS - model.prefix_quota
        evicted = model.put(model.segments, quota, model.blocks, number, size)
        assert (put.kept is Kept.NEW) is (evicted is not None)
        gone = [int.from_bytes(key.segment_hash, "big") for key in put.evictions.segments]
        assert gone == [name for kind, name in evicted or [] if kind == "own"]
        assert list(put.evictions.blocks) == [name for kind, name in evicted or [] if kind == "other"]

    @precondition(lambda self: self.model.segments.entries)
    @rule(data=st.data())
    def pin_segment(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name, _ in self.model.segments.entries]))
        self.store.pin_segment(segment_of(name, 0).key)
        self.model.segments.pinned[name] = self.model.segments.pinned.get(name, 0) + 1

    @precondition(lambda self: self.model.segments.pinned)
    @rule(data=st.data())
    def unpin_segment(self, data: st.DataObject) -> None:
        pinned = self.model.segments.pinned
        name = data.draw(st.sampled_from(sorted(pinned)))
        self.store.unpin_segment(segment_of(name, 0).key)
        pinned[name] -= 1
        if not pinned[name]:
            del pinned[name]
            self.model.segments.touch(name)

    @precondition(lambda self: self.model.blocks.entries)
    @rule(data=st.data())
    def pin_and_unpin_a_block(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from([name for name, _ in self.model.blocks.entries]))
        self.store.pin_blocks([EngineBlockHash(name)])
        self.store.unpin_blocks([EngineBlockHash(name)])
        self.model.blocks.touch(name)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert set(self.store.blocks()) == {name for name, _ in self.model.blocks.entries}
        held = {int.from_bytes(entry.segment_hash, "big") for entry in self.store.segments()}
        assert held == {name for name, _ in self.model.segments.entries}
        assert self.store.prefix_used_tokens == self.model.blocks.used
        assert self.store.segment_used_tokens == self.model.segments.used

    @invariant()
    def capacity_is_never_exceeded(self) -> None:
        assert self.store.used_tokens <= CAPACITY_TOKENS

    @invariant()
    def nothing_in_use_was_evicted(self) -> None:
        assert all(self.store.has_segment(segment_of(name, 0).key) for name in self.model.segments.pinned)


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(
    names=st.lists(st.integers(0, 12), max_size=60),
    ratio=st.floats(0, 1),
    capacity_blocks=st.integers(0, 8),
)
def test_one_class_alone_is_one_lru_at_any_split(names: Sequence[int], ratio: float, capacity_blocks: int) -> None:
    store = TwoClassStore(capacity_tokens=capacity_blocks * 3, prefix_ratio=ratio, block_size_tokens=3)
    lru: list[int] = []
    for name in names:
        store.put_blocks([EngineBlockHash(name)])
        lru = [*(other for other in lru if other != name), name][-capacity_blocks:] if capacity_blocks else []
    assert set(store.blocks()) == set(lru)


@given(runs=st.lists(st.lists(st.integers(0, 30), unique=True, max_size=12), max_size=10), ratio=st.floats(0, 1))
def test_a_run_of_blocks_is_kept_like_its_blocks_one_by_one(runs: Sequence[Sequence[int]], ratio: float) -> None:
    whole = TwoClassStore(capacity_tokens=16, prefix_ratio=ratio, block_size_tokens=2)
    single = TwoClassStore(capacity_tokens=16, prefix_ratio=ratio, block_size_tokens=2)
    for run in runs:
        # Known blocks are touched before room is made for the others, so that a run never drives out a part of itself.
        known = [name for name in run if single.has_block(EngineBlockHash(name))]
        new = [name for name in run if name not in known]
        whole.put_blocks([EngineBlockHash(name) for name in run])
        for name in known + new:
            single.put_blocks([EngineBlockHash(name)])
        assert set(whole.blocks()) == set(single.blocks())


class PoolMachine(RuleBasedStateMachine):
    """Requests over chains that share prefixes; a model counts who holds what."""

    CAPACITY_BLOCKS = 8

    def __init__(self) -> None:
        super().__init__()
        self.pool = DevicePool(self.CAPACITY_BLOCKS)
        self.live: list[tuple[BlockTable, list[int]]] = []
        """Table and chain."""

    @rule(family=st.integers(0, 3), length=st.integers(1, 5), partial=st.integers(0, 1))
    def admit(self, family: int, length: int, partial: int) -> None:
        chain = [10 * family + depth for depth in range(length)]
        hits = [EngineBlockHash(name) for name in chain if EngineBlockHash(name) in self.pool]
        num_new = length - len(hits) + partial
        held = sum(table.num_private for table, _ in self.live)
        held += len({name for table, _ in self.live for name in table.shared})
        newly_held = len([name for name in hits if not any(name in table.shared for table, _ in self.live)])
        fits = held + newly_held + num_new <= self.CAPACITY_BLOCKS
        assert self.pool.can_allocate(hits, num_new) is fits
        if fits:
            table, evicted = self.pool.allocate(hits, num_new)
            assert not set(evicted) & {name for other, _ in self.live for name in other.shared}
            assert not set(evicted) & set(hits)
            self.live.append((table, chain))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def name_all(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.live) - 1))
        table, chain = self.live[index]
        unnamed = [EngineBlockHash(name) for name in chain if EngineBlockHash(name) not in table.shared]
        num_blocks = table.num_blocks
        if len(unnamed) <= table.num_private:
            others = self.pool.cache(table, unnamed)
            assert table.num_blocks == num_blocks
            assert all(EngineBlockHash(name) in self.pool for name in chain)
            assert not others & set(table.shared)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        table, _ = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.pool.release(table)

    @invariant()
    def counts_agree(self) -> None:
        shared = {name for table, _ in self.live for name in table.shared}
        private = sum(table.num_private for table, _ in self.live)
        assert self.pool.num_held == len(shared) + private <= self.CAPACITY_BLOCKS
        assert self.pool.num_cached + private <= self.CAPACITY_BLOCKS
        assert all(name in self.pool for name in shared)


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
