"""vLLM's block events, as they come over the wire, turned into the worker's."""

from collections.abc import Sequence

import msgspec
import numpy as np
from support.engine_world import BLOCK, passage

from nebula_protocol.hashing import HashArray, hash_blocks
from nebula_protocol.ids import DpRank, EngineBlockHash, EventId
from nebula_protocol.tokens import TokenArray
from pic_worker.adapters.vllm.block_event_wire import block_name, decode_batch
from pic_worker.adapters.vllm.device_blocks import DeviceBlocks
from pic_worker.core.effects import KvRemoved, KvStored, WorkerEvent
from pic_worker.core.event_log import EventLog
from pic_worker.core.state_mirror import StateMirror

TOKENS = passage(1, 3 * BLOCK)


def salted(tokens: TokenArray, block_size_tokens: int, lineage: str) -> HashArray:
    return hash_blocks(tokens, block_size_tokens) + np.uint64(len(lineage))


class World:
    def __init__(self) -> None:
        self.mirror = StateMirror()
        self.log = EventLog(DpRank(0))
        self.blocks = DeviceBlocks(mirror=self.mirror, event_log=self.log, block_size_tokens=BLOCK, hash_blocks=salted)

    def tell(self, *events: dict[str, object]) -> tuple[WorkerEvent, ...]:
        """As vLLM writes them: an array around maps with the record's name under "type"."""
        self.blocks.apply(decode_batch(msgspec.msgpack.encode([1.5, list(events), 0])))
        return self.log.drain()


def stored(names: Sequence[int], tokens: TokenArray, parent: int | None = None, **fields: object) -> dict[str, object]:
    return {
        "type": "BlockStored",
        "block_hashes": list(names),
        "parent_block_hash": parent,
        "token_ids": tokens.tolist(),
        "block_size": BLOCK,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        **fields,
    }


def removed(*names: int) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": list(names), "medium": "GPU"}


def test_a_run_of_blocks_keeps_its_chain_tokens_and_hashes() -> None:
    (event,) = World().tell(stored([11, 12], TOKENS[: 2 * BLOCK], extra_keys=[None, None], group_idx=0))
    assert isinstance(event, KvStored)
    assert (event.event_id, event.lineage, event.parent_hash, event.block_hashes) == (1, "", None, (11, 12))
    assert event.tokens.tolist() == TOKENS[: 2 * BLOCK].tolist()
    assert event.tokens_hashes == tuple(hash_blocks(TOKENS[: 2 * BLOCK], BLOCK).tolist())


def test_blocks_behind_the_first_inherit_its_salt() -> None:
    world = World()
    first, second = world.tell(
        stored([11], TOKENS[:BLOCK], extra_keys=[["exact/"]]),
        stored([12], TOKENS[BLOCK : 2 * BLOCK], parent=11, extra_keys=[None]),
    )
    assert isinstance(first, KvStored)
    assert isinstance(second, KvStored)
    assert first.lineage == second.lineage == "exact/"
    # len("exact/") = 6, which the hasher of this test adds.
    assert second.tokens_hashes == tuple((hash_blocks(TOKENS[BLOCK : 2 * BLOCK], BLOCK) + np.uint64(6)).tolist())


def test_a_child_of_a_block_that_just_left_still_has_its_salt() -> None:
    world = World()
    world.tell(stored([11], TOKENS[:BLOCK], extra_keys=[["tenant/a"]]), removed(11))
    (event,) = world.tell(stored([12], TOKENS[BLOCK : 2 * BLOCK], parent=11))
    assert isinstance(event, KvStored)
    assert event.lineage == "tenant/a"


def test_a_block_of_an_unknown_parent_is_not_told() -> None:
    world = World()
    assert world.tell(stored([12], TOKENS[:BLOCK], parent=99)) == ()
    assert world.mirror.blocks() == ()


def test_names_fit_signed_integers_everywhere_alike() -> None:
    world = World()
    large = 2**63 + 5
    (event,) = world.tell(stored([large, 7], TOKENS[: 2 * BLOCK]))
    assert isinstance(event, KvStored)
    assert event.block_hashes == (5, 7)
    assert world.tell(removed(large)) == (KvRemoved(EventId(event.event_id + 1), (EngineBlockHash(5),)),)
    assert block_name(large) == 5


def test_a_block_that_is_not_there_is_not_removed() -> None:
    world = World()
    world.tell(stored([11], TOKENS[:BLOCK]))
    (event,) = world.tell(removed(11, 12), removed(12))
    assert event == KvRemoved(event.event_id, (EngineBlockHash(11),))


def test_a_cleared_cache_removes_every_block() -> None:
    world = World()
    world.tell(stored([11, 12], TOKENS[: 2 * BLOCK]))
    (event,) = world.tell({"type": "AllBlocksCleared"})
    assert isinstance(event, KvRemoved)
    assert set(event.block_hashes) == {11, 12}
    assert world.mirror.blocks() == ()


def test_a_partial_block_is_passed_over() -> None:
    assert World().tell(stored([11], TOKENS[:2], block_size=2)) == ()
