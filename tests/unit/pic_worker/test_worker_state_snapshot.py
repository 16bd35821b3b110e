"""The full state, and events on the wire."""

from support.engine_world import BLOCK, OWN, EngineWorld, helper, passage, unplanned

from nebula_protocol.events import BlocksRemoved, PicEvent, StoredBlock
from nebula_protocol.hashing import hash_blocks
from nebula_protocol.ids import EventId
from nebula_protocol.subjects import Topic
from pic_worker.core.block_chain import chain_blocks
from pic_worker.core.effects import KvRemoved, KvStored, kv_event_of

FIRST = passage(1, 4 * BLOCK)


def test_a_fresh_worker_holds_nothing() -> None:
    state = EngineWorld().engine.state_snapshot()
    assert (state.blocks, state.segments) == ((), ())


def test_blocks_come_with_parent_tokens_hash_and_tiers() -> None:
    world = EngineWorld(device_capacity_tokens=5 * BLOCK)
    world.serve(unplanned("a", FIRST))
    world.serve(unplanned("b", passage(2, 3 * BLOCK)))
    blocks = world.engine.state_snapshot().blocks
    chain = chain_blocks(hash_blocks(FIRST, BLOCK), "")
    of_first = [block for block in blocks if block.block_hash in chain.hashes]
    # b took the blank block and the two last ones of a, which are in the store now.
    assert [block.tiers for block in of_first] == [1, 1, 2, 2]
    assert [block.block_hash for block in of_first] == list(chain.hashes)
    assert [block.parent_hash for block in of_first] == [None, *chain.hashes[:-1]]
    assert [block.tokens_hash for block in of_first] == list(chain.tokens_hashes)


def test_parents_come_before_children_even_if_they_came_back_later() -> None:
    world = EngineWorld(device_capacity_tokens=4 * BLOCK, store_capacity_tokens=0)
    world.serve(unplanned("a", FIRST))
    world.serve(unplanned("b", passage(2, 3 * BLOCK)))
    world.serve(unplanned("c", FIRST))
    seen = set()
    for block in world.engine.state_snapshot().blocks:
        assert block.parent_hash is None or block.parent_hash in seen
        seen.add(block.block_hash)
    assert len(seen) == 4


def test_the_snapshot_names_the_last_events_that_it_contains() -> None:
    world = EngineWorld()
    before = world.engine.state_snapshot().last_event_ids
    world.serve(unplanned("a", FIRST))
    world.serve(helper("h", passage(3, 8)))
    after = world.engine.state_snapshot().last_event_ids
    assert after == {topic: EventId(last + 1) for topic, last in before.items()}
    assert world.receipts["h"].last_event_ids == after
    kv_ids = [event.event_id for event in world.events if not isinstance(event, PicEvent)]
    assert kv_ids == [after[Topic.KV_EVENTS]]


def test_device_events_become_dynamos_own() -> None:
    world = EngineWorld(device_capacity_tokens=4 * BLOCK)
    world.serve(unplanned("a", FIRST))
    world.serve(unplanned("b", passage(2, 2 * BLOCK)))
    stored, removed = (event for event in world.events[:3] if isinstance(event, KvStored | KvRemoved))
    chain = chain_blocks(hash_blocks(FIRST, BLOCK), "")
    wire = kv_event_of(stored, OWN.dp_rank).data
    assert not isinstance(wire, str)
    assert wire.stored is not None
    assert wire.stored.parent_hash is None
    assert wire.stored.blocks == tuple(
        StoredBlock(block_hash=block_hash, tokens_hash=tokens_hash)
        for block_hash, tokens_hash in zip(chain.hashes, chain.tokens_hashes, strict=True)
    )
    wire = kv_event_of(removed, OWN.dp_rank).data
    assert not isinstance(wire, str)
    assert wire.removed == BlocksRemoved(block_hashes=(chain.hashes[3], chain.hashes[2]))
