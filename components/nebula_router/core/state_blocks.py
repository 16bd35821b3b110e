"""A worker's full state names blocks by their parents; the index needs each block's place in its chain."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from nebula_protocol.events import BlockEntry
from nebula_protocol.hashing import HashArray, accumulate_prefix
from nebula_protocol.ids import EngineBlockHash
from nebula_router.core.key_map import hash_array

ON_DEVICE = 1
ON_HOST = 2
"""Bits of `BlockEntry.tiers`."""


@dataclass(frozen=True, slots=True)
class Place:
    """Of one block: what continues its chain."""

    accumulator: int
    depth: int


Recall = Callable[[HashArray], dict[int, Place]]
"""The places of those of the named blocks that are known from before."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedBlocks:
    """Shape [blocks] each, blocks in the state's order."""

    names: HashArray
    accumulators: HashArray
    depths: npt.NDArray[np.int32]
    tiers: npt.NDArray[np.uint8]
    unplaced: tuple[int, ...]
    """Names of blocks whose chain has a hole that nobody remembers. They cannot be hits until it is filled."""


def place_blocks(entries: Sequence[BlockEntry], recall: Recall) -> PlacedBlocks:
    """Follows the chains of a full state, whose parents come before their children.

    O(blocks), and one vectorised step for each run of consecutive blocks of a chain.
    """
    entries = _without_repeats(entries)
    names = hash_array([entry.block_hash for entry in entries])
    tokens_hashes = hash_array([entry.tokens_hash for entry in entries])
    parents = [entry.parent_hash for entry in entries]
    placed = np.zeros(len(entries), dtype=np.bool_)
    accumulators = np.zeros(len(entries), dtype=np.uint64)
    depths = np.zeros(len(entries), dtype=np.int32)
    position = {entry.block_hash: at for at, entry in enumerate(entries)}
    recalled = _recall_orphans(entries, position, recall)

    def place_of(at: int) -> Place | None:
        return Place(int(accumulators[at]), int(depths[at])) if placed[at] else None

    for start, end in _runs(entries):
        own = recalled.get(entries[start].block_hash)
        parent = parents[start]
        if parent is None:
            before: Place | None = Place(0, -1)
        elif parent in position:
            before = place_of(position[parent])
        elif own is not None:
            accumulators[start], depths[start], placed[start] = own.accumulator, own.depth, True
            before, start = own, start + 1
        else:
            before = recalled.get(parent)
        if before is None or start == end:
            continue
        accumulators[start:end] = accumulate_prefix(
            tokens_hashes[start:end], parent_accumulator=before.accumulator, start_block=before.depth + 1
        )
        depths[start:end] = np.arange(before.depth + 1, before.depth + 1 + end - start)
        placed[start:end] = True

    tiers = np.array([entry.tiers & (ON_DEVICE | ON_HOST) for entry in entries], dtype=np.uint8)
    unplaced = tuple(names[~placed].tolist())
    return PlacedBlocks(names[placed], accumulators[placed], depths[placed], tiers[placed], unplaced)


def _without_repeats(entries: Sequence[BlockEntry]) -> Sequence[BlockEntry]:
    by_name = {entry.block_hash: entry for entry in entries}
    return entries if len(by_name) == len(entries) else list(by_name.values())


def _runs(entries: Sequence[BlockEntry]) -> list[tuple[int, int]]:
    """[start, end) of stretches in which each block is the parent of the next."""
    starts = [at for at, entry in enumerate(entries) if at == 0 or entry.parent_hash != entries[at - 1].block_hash]
    return list(pairwise([*starts, len(entries)]))


def _recall_orphans(
    entries: Sequence[BlockEntry], position: Mapping[EngineBlockHash, int], recall: Recall
) -> dict[int, Place]:
    """What is known from before of blocks whose parent the worker has no more, and of those parents."""
    orphans = [entry for entry in entries if entry.parent_hash is not None and entry.parent_hash not in position]
    if not orphans:
        return {}
    wanted = [name for entry in orphans for name in (entry.block_hash, entry.parent_hash) if name is not None]
    return recall(hash_array(wanted))
