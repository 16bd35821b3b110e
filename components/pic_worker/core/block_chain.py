"""The engine's names of a prompt's blocks: each stands for a block's tokens and everything before it."""

from dataclasses import dataclass
from typing import cast

import numpy as np

from nebula_protocol.hashing import HashArray, accumulate_prefix, prefix_keys, salt_of
from nebula_protocol.ids import BlockHash, EngineBlockHash

# Dynamo's publisher takes signed 64-bit integers and sends unsigned ones; 63 bits mean the same in both.
_SIGNED_SAFE = np.uint64(0x7FFF_FFFF_FFFF_FFFF)


@dataclass(frozen=True, slots=True)
class BlockChain:
    """Full blocks only; both tuples have the same length."""

    hashes: tuple[EngineBlockHash, ...]
    tokens_hashes: tuple[BlockHash, ...]


def chain_blocks(block_hashes: HashArray, lineage: str) -> BlockChain:
    """Names the blocks of one prompt. Chains of different lineages share nothing. O(blocks), vectorised."""
    keys = prefix_keys(accumulate_prefix(block_hashes), salt_of(lineage)) & _SIGNED_SAFE
    return BlockChain(
        hashes=tuple(cast("list[EngineBlockHash]", keys.tolist())),
        tokens_hashes=tuple(cast("list[BlockHash]", block_hashes.tolist())),
    )
