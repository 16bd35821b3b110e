"""Who holds what: one row per entry (prefix block or segment), one bit per holder, in flat columns."""

from collections.abc import Callable
from enum import IntEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from nebula_protocol.hashing import HashArray
from nebula_router.core.key_map import ABSENT, BoolArray, IntArray

WORD_BITS = 64
"""Holders per word of bits."""

_FIRST_ROWS = 1024
_ROW_BITS = np.int64(32)
_ROW_MASK = np.int64((1 << 32) - 1)
# At the bound this share of the rows goes at once, so that finding the oldest is paid for by many new rows.
_EVICT_RATIO = 1 / 16

Scalar = TypeVar("Scalar", bound=np.generic)
Forget = Callable[[IntArray], None]
"""Told of rows that are about to be released, so that their keys disappear with them."""


class Kind(IntEnum):
    FREE = 0
    BLOCK = 1
    SEGMENT = 2


class HolderTable:
    """Rows with four bits per holder, at most `max_rows` of them; the longest unused make room for new ones.

    Memory per row: 25 bytes, and 32 for every 64 holders; `PrefixBlocks` and `SegmentEntries` add their keys.
    Columns are replaced when the table grows: never keep one across a call of `allocate`.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.num_evicted = 0
        """Rows that made room for others. Anything but 0 says that the bound is too small for these workers."""
        self.version = 0
        """Changes whenever a row is allocated or released."""
        rows = min(_FIRST_ROWS, max_rows)
        self.device: HashArray = np.zeros((1, rows), dtype=np.uint64)
        """Shape [words, rows]: in the engine's own cache, confirmed."""
        self.host: HashArray = np.zeros((1, rows), dtype=np.uint64)
        """In the worker's store, confirmed. Segments lie only there."""
        self.claimed: HashArray = np.zeros((1, rows), dtype=np.uint64)
        """A live claim says that it is, or will be, there."""
        self.leaving: HashArray = np.zeros((1, rows), dtype=np.uint64)
        """It left the engine's cache; the store has not said yet whether it has it. No hit, but known by name."""
        self._kind: npt.NDArray[np.uint8] = np.zeros(rows, dtype=np.uint8)
        self._generation: IntArray = np.zeros(rows, dtype=np.int64)
        self._last_used: IntArray = np.zeros(rows, dtype=np.int64)
        self._use = 0
        self._free: IntArray = np.arange(rows - 1, -1, -1, dtype=np.int64)
        self._num_free = rows
        self._counts = {Kind.BLOCK: 0, Kind.SEGMENT: 0}
        self._forget: dict[Kind, Forget] = {}

    def __len__(self) -> int:
        return self.capacity - self._num_free

    @property
    def capacity(self) -> int:
        return len(self._kind)

    @property
    def max_batch(self) -> int:
        """Most rows for one operation: those that it has just touched are then never the ones that make room."""
        return max(1, self.max_rows // 2)

    def on_release(self, kind: Kind, forget: Forget) -> None:
        self._forget[kind] = forget

    def count(self, kind: Kind) -> int:
        return self._counts[kind]

    def used_rows(self) -> IntArray:
        """O(capacity)."""
        return np.flatnonzero(self._kind)

    def rows_of_kind(self, kind: Kind) -> IntArray:
        """O(capacity)."""
        return np.flatnonzero(self._kind == kind)

    def touch(self, rows: IntArray | int) -> None:
        """Makes the rows the most recently used ones."""
        self._use += 1
        self._last_used[rows] = self._use

    def has_room(self, num_rows: int) -> bool:
        """Whether so many can be allocated without any making room."""
        return len(self) + num_rows <= self.max_rows

    def allocate(self, kind: Kind, num_rows: int) -> IntArray:
        """New rows that nobody holds, as recently used as those touched last.

        `num_rows` is at most `max_batch`. O(rows asked for) amortised; at the bound O(capacity) once per 1/16 of it.
        """
        if num_rows > self._num_free:
            self._make_room(num_rows)
        self._num_free -= num_rows
        rows = self._free[self._num_free : self._num_free + num_rows].copy()
        self._kind[rows] = kind
        self._last_used[rows] = self._use
        self._counts[kind] += num_rows
        self.version += 1
        return rows

    def release(self, rows: IntArray) -> None:
        """Frees rows, each named once and in use, whoever holds them."""
        if not len(rows):
            return
        kinds = self._kind[rows]
        for kind, forget in self._forget.items():
            of_kind = rows[kinds == kind]
            if len(of_kind):
                forget(of_kind)
                self.take_back(kind, of_kind)

    def take_back(self, kind: Kind, rows: IntArray) -> None:
        """Frees rows of one kind that have no keys (any more)."""
        self.device[:, rows] = 0
        self.host[:, rows] = 0
        self.claimed[:, rows] = 0
        self.leaving[:, rows] = 0
        self._kind[rows] = Kind.FREE
        self._generation[rows] += 1
        self._free[self._num_free : self._num_free + len(rows)] = rows
        self._num_free += len(rows)
        self._counts[kind] -= len(rows)
        self.version += 1

    def empty_among(self, rows: IntArray) -> IntArray:
        """The rows, each once, that are in use but that nobody holds or claims any more."""
        bits = np.zeros(len(rows), dtype=np.uint64)
        for column in (self.device, self.host, self.claimed, self.leaving):
            for word in column:
                bits |= word.take(rows)
        empty = rows[(bits == 0) & (self._kind.take(rows) != Kind.FREE)]
        return np.unique(empty) if len(empty) > 1 else empty

    def release_empty(self, rows: IntArray) -> int:
        """Frees those of the rows that nobody holds or claims any more, and returns how many."""
        empty = self.empty_among(rows)
        self.release(empty)
        return len(empty)

    def handles_of(self, rows: IntArray) -> IntArray:
        """Numbers >= 0 that name the rows' present content: `rows_of` knows them until the row is released."""
        return (self._generation.take(rows) << _ROW_BITS) | rows

    def rows_of(self, handles: IntArray) -> IntArray:
        """Shape [handles]; `ABSENT` where the row was released since, or the handle is `ABSENT` itself."""
        return np.where(self.is_alive(handles), handles & _ROW_MASK, ABSENT)

    def is_alive(self, handles: IntArray) -> BoolArray:
        # ABSENT names generation -1 of some row: clipped into the table, it never is alive.
        generations = self._generation.take(handles & _ROW_MASK, mode="clip")
        alive: BoolArray = generations == handles >> _ROW_BITS
        return alive

    def add_words(self, num_words: int) -> None:
        """Makes room for `num_words * 64` holders."""
        missing = num_words - len(self.device)
        if missing > 0:
            more = np.zeros((missing, self.capacity), dtype=np.uint64)
            self.device = np.concatenate([self.device, more])
            self.host = np.concatenate([self.host, more])
            self.claimed = np.concatenate([self.claimed, more])
            self.leaving = np.concatenate([self.leaving, more])

    def _make_room(self, num_rows: int) -> None:
        surplus = len(self) + num_rows - self.max_rows
        if surplus > 0:
            self._evict(max(surplus, int(self.max_rows * _EVICT_RATIO)))
        if num_rows > self._num_free:
            self._grow(min(self.max_rows, max(2 * self.capacity, len(self) + num_rows)))

    def _evict(self, num_rows: int) -> None:
        used = self.used_rows()
        oldest = np.argpartition(self._last_used[used], num_rows - 1)[:num_rows]
        self.num_evicted += num_rows
        self.release(used[oldest])

    def _grow(self, capacity: int) -> None:
        before = self.capacity
        self.device = grown(self.device, capacity)
        self.host = grown(self.host, capacity)
        self.claimed = grown(self.claimed, capacity)
        self.leaving = grown(self.leaving, capacity)
        self._kind = grown(self._kind, capacity)
        self._generation = grown(self._generation, capacity)
        self._last_used = grown(self._last_used, capacity)
        added = np.arange(capacity - 1, before - 1, -1, dtype=np.int64)
        free = np.concatenate([added, self._free[: self._num_free]])
        self._free = grown(free, capacity)
        self._num_free = len(free)


def grown(column: npt.NDArray[Scalar], capacity: int) -> npt.NDArray[Scalar]:
    """A copy whose last axis has `capacity` items; the new ones are 0."""
    result = np.zeros((*column.shape[:-1], capacity), dtype=column.dtype)
    result[..., : column.shape[-1]] = column
    return result
