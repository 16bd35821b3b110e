"""vLLM's events about blocks of its prefix cache, as they come over ZeroMQ.

The records are vLLM's own, read here with the fields that matter: a subscriber need not load vLLM's, and later
versions may add fields.
"""

import msgspec

from nebula_protocol.ids import EngineBlockHash

_SIGNED_SAFE = 0x7FFF_FFFF_FFFF_FFFF


class BlockStored(msgspec.Struct, frozen=True, tag=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    extra_keys: list[list[object] | None] | None = None
    """Of each block: what went into its hash beside tokens and parent. A prompt's first block has the salt there."""
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True):
    block_hashes: list[int]
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    pass


class BlockEventBatch(msgspec.Struct, frozen=True, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


def block_name(block_hash: int) -> EngineBlockHash:
    """A block's name in events: Dynamo's publisher takes signed 64-bit integers, 63 bits mean the same in both."""
    return EngineBlockHash(block_hash & _SIGNED_SAFE)


_DECODER = msgspec.msgpack.Decoder(BlockEventBatch)


def decode_batch(data: bytes) -> BlockEventBatch:
    """
    Raises:
        msgspec.MsgspecError: it is something else.
    """
    return _DECODER.decode(data)
