"""Laws of the index's parts: the key map, the bound, order, and repair after lost events."""

from collections.abc import Sequence
from itertools import product
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.naive_view import Prefix
from support.placement_case import round_card
from support.view_world import (
    NOW_S,
    TTL_S,
    Dispatch,
    Publisher,
    device_blocks,
    entry,
    new_view,
    prompt,
    segment_states,
)

from nebula_protocol.events import WorkerKvEvent, WorkerPicEvents
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import StateChunk
from nebula_router.core.block_names import GRACE_S
from nebula_router.core.coverage import NOT_HELD, STORED
from nebula_router.core.key_map import ABSENT, KeyMap
from nebula_router.core.view import ClusterView

# Few keys and few buckets: keys repeat and buckets fill up.
INVERSE = pow(0x9E3779B97F4A7C15, -1, 2**64)
map_keys = st.one_of(st.integers(0, 20), st.integers(1, 30).map(lambda at: INVERSE * at % 2**64))
key_lists = st.lists(map_keys, max_size=60)


class KeyMapAgainstDict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.map = KeyMap()
        self.dict: dict[int, int] = {}
        self.next_value = 0

    def new_values(self, num: int) -> list[int]:
        self.next_value += num
        return list(range(self.next_value - num, self.next_value))

    @rule(keys=key_lists)
    def setdefault(self, keys: list[int]) -> None:
        values = self.new_values(len(keys))
        standing = self.map.setdefault(np.array(keys, dtype=np.uint64), np.array(values, dtype=np.int64)).tolist()
        for key, value in zip(keys, standing, strict=True):
            # Of a new key that is repeated any of its values may stand, but one for all.
            assert value in ([self.dict[key]] if key in self.dict else values)
            self.dict.setdefault(key, value)

    @rule(keys=key_lists.map(lambda keys: sorted(set(keys))))
    def put(self, keys: list[int]) -> None:
        values = self.new_values(len(keys))
        self.map.put(np.array(keys, dtype=np.uint64), np.array(values, dtype=np.int64))
        self.dict.update(zip(keys, values, strict=True))

    @rule(keys=key_lists)
    def pop(self, keys: list[int]) -> None:
        popped = self.map.pop(np.array(keys, dtype=np.uint64)).tolist()
        expected = sorted(self.dict.pop(key) for key in set(keys) if key in self.dict)
        assert sorted(value for value in popped if value != ABSENT) == expected

    @rule(divisor=st.integers(1, 4))
    def retain(self, divisor: int) -> None:
        self.map.retain(lambda values: values % divisor == 0)
        self.dict = {key: value for key, value in self.dict.items() if value % divisor == 0}

    @invariant()
    def they_agree(self) -> None:
        keys = [*self.dict, 10**6]
        found = self.map.find(np.array(keys, dtype=np.uint64)).tolist()
        assert found == [*self.dict.values(), ABSENT]
        assert len(self.map) == len(self.dict)


KeyMapAgainstDict.TestCase.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)
TestKeyMapAgainstDict = KeyMapAgainstDict.TestCase


# ---- the bound ----

deeds = st.one_of(
    st.tuples(st.just("store"), st.integers(1, 2), st.integers(0, 40)),
    st.tuples(st.just("remove"), st.integers(1, 2), st.integers(0, 40)),
    st.tuples(st.just("segment"), st.integers(1, 2), st.integers(0, 40)),
    st.tuples(st.just("dispatch"), st.integers(1, 2), st.integers(0, 40)),
    st.tuples(st.just("look"), st.integers(1, 2), st.integers(0, 40)),
    st.tuples(st.just("wait"), st.integers(1, 2), st.integers(0, 4)),
)


@given(st.lists(deeds, max_size=60), st.integers(4, 24))
def test_the_bound_holds_and_nothing_is_left_in_the_end(history: list[tuple[str, int, int]], bound: int) -> None:
    view = ClusterView(max_entries=bound, max_holders=8, ttl_s=TTL_S)
    publishers = {worker_id: Publisher(worker_id) for worker_id in (1, 2)}
    for worker_id in publishers:
        view.add_worker(round_card(worker_id))
    now_s = NOW_S
    for number, (what, worker_id, value) in enumerate(history):
        events, names = publishers[worker_id], list(range(value, value + 5))
        match what:
            case "store":
                view.apply_kv_events([events.stored(names)], now_s)
            case "remove":
                view.apply_kv_events([events.removed(names)], now_s)
            case "segment":
                view.apply_pic_events(events.segment_stored(value), now_s)
            case "dispatch":
                layout = prompt(names, [value, value + 1])
                Dispatch(layout, worker_id, f"request {number}", computed=[0, 1]).record(view, now_s)
            case "look":
                device_blocks(view, names, now_s)
            case "wait":
                now_s += value
        assert view.num_entries <= bound
        assert view.num_entries == view.num_blocks + view.num_segments
    for worker_id in publishers:
        view.remove_worker(WorkerId(worker_id))
    assert (view.num_entries, view.num_claims) == (0, 0)


# ---- order and repetition ----

chains = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple), min_size=1, max_size=6)


def stored_events(events: Publisher, paths: Sequence[Prefix]) -> list[WorkerKvEvent]:
    """One per path; blocks are named by their paths."""
    return [events.stored([name_of(path[: at + 1]) for at in range(len(path))], path) for path in paths]


def name_of(path: Prefix) -> int:
    return int("".join(map(str, path)))


@given(chains, st.randoms(use_true_random=False))
def test_the_order_of_workers_and_chains_does_not_matter(paths: list[Prefix], random: Random) -> None:
    shuffled = list(paths)
    random.shuffle(shuffled)
    one, other = new_view(2), new_view(2)
    for worker_id in (1, 2):
        one.apply_kv_events(stored_events(Publisher(worker_id), paths[: 3 * worker_id]), NOW_S)
    for worker_id in (2, 1):
        chosen = [path for path in shuffled if path in paths[: 3 * worker_id]]
        other.apply_kv_events(stored_events(Publisher(worker_id), chosen), NOW_S)
    for path in paths:
        assert device_blocks(one, path) == device_blocks(other, path)
    assert one.num_entries == other.num_entries


@given(chains)
def test_an_event_twice_is_as_once_and_all_removed_is_nothing(paths: list[Prefix]) -> None:
    view, events = new_view(1), Publisher()
    history = stored_events(events, paths)
    for event in history:
        view.apply_kv_events([event, event], NOW_S)
    expected = {path[: at + 1] for path in paths for at in range(len(path))}
    assert view.num_entries == len(expected)
    removals = [events.removed([name_of(prefix)]) for prefix in sorted(expected, key=len, reverse=True)]
    view.apply_kv_events(removals, NOW_S)
    view.apply_kv_events(history, NOW_S)
    view.expire(NOW_S + GRACE_S + 1)
    assert view.num_entries == 0


# ---- repair ----

steps = st.lists(
    st.tuples(
        st.sampled_from(["store", "evict", "segment", "state"]),
        st.lists(st.integers(1, 2), min_size=1, max_size=3).map(tuple),
        st.sampled_from(["arrives", "arrives", "arrives", "lost", "twice"]),
    ),
    max_size=25,
)


class Truth:
    """What a worker has, and what it tells of it."""

    def __init__(self) -> None:
        self.events = Publisher()
        self.blocks: set[Prefix] = set()
        self.segments: set[Prefix] = set()

    def step(self, what: str, path: Prefix) -> WorkerKvEvent | WorkerPicEvents | None:
        if what == "store":
            self.blocks |= {path[: at + 1] for at in range(len(path))}
            return stored_events(self.events, [path])[0]
        if what == "segment":
            is_new = path not in self.segments
            self.segments ^= {path}
            return self.events.segment_stored(path) if is_new else self.events.segment_removed(path)
        leaves = self.blocks - {block[:-1] for block in self.blocks}
        if path not in leaves:
            return None
        self.blocks.discard(path)
        return self.events.removed([name_of(path)])

    def state(self) -> list[StateChunk]:
        blocks = [
            entry(name_of(block), name_of(block[:-1]) if block[:-1] else None, 1, block[-1])
            for block in sorted(self.blocks, key=lambda block: (len(block), block))
        ]
        return self.events.state(blocks, sorted(self.segments))


@given(steps)
def test_whatever_is_lost_a_state_makes_the_view_right_again(history: list[tuple[str, Prefix, str]]) -> None:
    view, truth = new_view(1), Truth()
    for what, path, fate in history:
        if what == "state":
            view.begin_state(WorkerId(1))
            chunks = truth.state()
            # An event that the state does not contain arrives before it, or is lost.
            later = truth.step("store", path)
            deliver(view, later, fate)
            view.apply_state(chunks, NOW_S)
        else:
            deliver(view, truth.step(what, path), fate)
    # A gap shows with the next event of its topic.
    deliver(view, truth.events.stored([]), "arrives")
    deliver(view, truth.events.segment_removed("never stored"), "arrives")
    if view.needs_state():
        view.apply_state(truth.state(), NOW_S)
    assert not view.needs_state()
    for path in product((1, 2), repeat=3):
        num_blocks = next((at for at in range(3) if path[: at + 1] not in truth.blocks), 3)
        assert device_blocks(view, path) == [num_blocks]
    for length in (1, 2, 3):
        for name in product((1, 2), repeat=length):
            assert segment_states(view, name) == [STORED if name in truth.segments else NOT_HELD]


def deliver(view: ClusterView, message: WorkerKvEvent | WorkerPicEvents | None, fate: str) -> None:
    for _ in range({"lost": 0, "arrives": 1, "twice": 2}[fate]):
        if isinstance(message, WorkerKvEvent):
            view.apply_kv_events([message], NOW_S)
        elif message is not None:
            view.apply_pic_events(message, NOW_S)
