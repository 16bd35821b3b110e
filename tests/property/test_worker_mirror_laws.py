"""The mirror, told nothing but events, knows what the engine itself says that it holds."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_world import EngineWorld, helper, join, passage, unplanned

from nebula_protocol.events import BlockEntry, PicEvent, SegmentEntry
from pic_worker.core.effects import KvRemoved, KvStored, WorkerEvent
from pic_worker.core.state_mirror import StateMirror

PASSAGES = [passage(number, 4 + 3 * number) for number in range(1, 6)]
numbers = st.lists(st.integers(0, len(PASSAGES) - 1), min_size=1, max_size=4)
ops = st.one_of(
    st.tuples(st.just("prompt"), numbers),
    st.tuples(st.just("helper"), numbers),
    st.tuples(st.just("split"), st.integers(0, 10)),
    st.tuples(st.just("clear"), st.none()),
)


def happenings(commands: Sequence[tuple[str, object]]) -> EngineWorld:
    world = EngineWorld(device_capacity_tokens=96, store_capacity_tokens=64)
    for index, (name, argument) in enumerate(commands):
        if name == "split" and isinstance(argument, int):
            world.engine.set_split(argument / 10)
        elif name == "clear":
            world.take(world.engine.clear())
        elif isinstance(argument, list):
            pieces = [PASSAGES[number] for number in dict.fromkeys(argument)]
            if name == "helper":
                world.serve(helper(f"h{index}", *pieces))
            else:
                ends = [sum(map(len, pieces[: end + 1])) for end in range(len(pieces))]
                cuts = list(zip([0, *ends], ends, strict=False))
                world.serve(unplanned(f"p{index}", join(*pieces), cuts))
    return world


def tell(mirror: StateMirror, event: WorkerEvent) -> None:
    match event:
        case KvStored():
            mirror.put_device_blocks(event.lineage, event.parent_hash, event.block_hashes, event.tokens_hashes)
        case KvRemoved():
            assert mirror.remove_device_blocks(event.block_hashes) == event.block_hashes
        case PicEvent():
            mirror.apply(event.data)


def interleaved(events: Sequence[WorkerEvent], turns: Sequence[bool]) -> list[WorkerEvent]:
    """Both topics in their own order, mixed by `turns`; True takes from the device tier's."""
    kv = [event for event in events if not isinstance(event, PicEvent)]
    pic: list[WorkerEvent] = [event for event in events if isinstance(event, PicEvent)]
    mixed: list[WorkerEvent] = []
    for takes_kv in turns:
        topic = (kv or pic) if takes_kv else (pic or kv)
        if topic:
            mixed.append(topic.pop(0))
    return mixed + kv + pic


def check_order(blocks: Sequence[BlockEntry]) -> None:
    place = {block.block_hash: index for index, block in enumerate(blocks)}
    assert len(place) == len(blocks)
    for index, block in enumerate(blocks):
        if block.parent_hash in place:
            assert place[block.parent_hash] < index


def by_hash(entries: Sequence[SegmentEntry]) -> list[SegmentEntry]:
    return sorted(entries, key=lambda entry: (entry.domain_id, entry.segment_hash))


@settings(deadline=None, max_examples=60)
@given(commands=st.lists(ops, max_size=12), turns=st.lists(st.booleans(), max_size=80))
def test_a_mirror_of_the_events_is_the_state_in_whatever_order_the_topics_arrive(
    commands: list[tuple[str, object]], turns: list[bool]
) -> None:
    world, mirror = happenings(commands), StateMirror()
    for event in interleaved(world.events, turns):
        tell(mirror, event)
        check_order(mirror.blocks())
    state = world.engine.state_snapshot()
    assert set(mirror.blocks()) == set(state.blocks)
    assert by_hash(mirror.segments()) == by_hash(state.segments)


@settings(deadline=None, max_examples=20)
@given(commands=st.lists(ops, max_size=8))
def test_an_emptied_device_tier_leaves_what_the_store_has(commands: list[tuple[str, object]]) -> None:
    world, mirror = happenings(commands), StateMirror()
    for event in world.events:
        tell(mirror, event)
    before = mirror.blocks()
    gone = mirror.clear_device()
    assert set(gone) == {block.block_hash for block in before if block.tiers & 1}
    assert set(mirror.blocks()) == {
        BlockEntry(block.block_hash, block.parent_hash, block.tokens_hash, 2) for block in before if block.tiers & 2
    }
