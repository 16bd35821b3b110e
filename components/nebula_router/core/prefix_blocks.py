"""Prefix blocks in the index: a block's key is Nebula's own hash of it and everything before it."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from nebula_protocol.hashing import HashArray, accumulate_prefix, prefix_keys
from nebula_router.core.holder_table import HolderTable, Kind, grown
from nebula_router.core.key_map import ABSENT, IntArray, KeyMap


@dataclass(frozen=True, slots=True, eq=False)
class BlockRun:
    """Blocks and their places in chains, shape [blocks] each. `accumulators` continue a chain."""

    keys: HashArray
    accumulators: HashArray
    depths: npt.NDArray[np.int32]
    """Number of blocks before each."""
    block_size_tokens: int

    @classmethod
    def of_chain(
        cls,
        tokens_hashes: HashArray,
        salt: int,
        block_size_tokens: int,
        *,
        parent_accumulator: int = 0,
        start_block: int = 0,
    ) -> Self:
        """Consecutive blocks of one chain."""
        accumulators = accumulate_prefix(tokens_hashes, parent_accumulator=parent_accumulator, start_block=start_block)
        depths = np.arange(start_block, start_block + len(tokens_hashes), dtype=np.int32)
        return cls(prefix_keys(accumulators, salt), accumulators, depths, block_size_tokens)

    @classmethod
    def of_places(
        cls, accumulators: HashArray, depths: npt.NDArray[np.int32], salt: int, block_size_tokens: int
    ) -> Self:
        """Blocks of any chains."""
        return cls(prefix_keys(accumulators, salt), accumulators, depths, block_size_tokens)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, part: slice | IntArray) -> Self:
        return type(self)(self.keys[part], self.accumulators[part], self.depths[part], self.block_size_tokens)


class PrefixBlocks:
    """Rows of prefix blocks by key. Memory per entry: 20 bytes of columns, 43 to 85 of the map, and its row."""

    def __init__(self, table: HolderTable) -> None:
        self._table = table
        self._rows = KeyMap()
        self._keys: HashArray = np.zeros(table.capacity, dtype=np.uint64)
        self._accumulators: HashArray = np.zeros(table.capacity, dtype=np.uint64)
        self._depths: npt.NDArray[np.int32] = np.zeros(table.capacity, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, keys: HashArray) -> IntArray:
        """Shape [keys]; `ABSENT` where nobody has the block."""
        return self._rows.find(keys)

    def find_or_add(self, run: BlockRun) -> IntArray:
        """The rows of at most `HolderTable.max_batch` blocks, made where missing, and now the most recently used."""
        if not self._table.has_room(len(run)):
            # Those that are here must not be what makes room for the others.
            found = self.find(run.keys)
            self._table.touch(found[found != ABSENT])
        new = self._table.allocate(Kind.BLOCK, len(run))
        if self._table.capacity > len(self._keys):
            self._grow()
        rows = self._rows.setdefault(run.keys, new)
        is_new = rows == new
        if is_new.all():
            self._describe(new, run)
        else:
            self._table.take_back(Kind.BLOCK, new[~is_new])
            made = np.flatnonzero(is_new)
            self._describe(new[made], run[made])
        self._table.touch(rows)
        return rows

    def keys_of(self, rows: IntArray) -> HashArray:
        return self._keys.take(rows)

    def accumulators_of(self, rows: IntArray) -> HashArray:
        return self._accumulators.take(rows)

    def depths_of(self, rows: IntArray) -> npt.NDArray[np.int32]:
        return self._depths.take(rows)

    def forget(self, rows: IntArray) -> None:
        """The rows are about to be released."""
        self._rows.pop(self._keys.take(rows))

    def _describe(self, rows: IntArray, run: BlockRun) -> None:
        self._keys[rows] = run.keys
        self._accumulators[rows] = run.accumulators
        self._depths[rows] = run.depths

    def _grow(self) -> None:
        self._keys = grown(self._keys, self._table.capacity)
        self._accumulators = grown(self._accumulators, self._table.capacity)
        self._depths = grown(self._depths, self._table.capacity)
