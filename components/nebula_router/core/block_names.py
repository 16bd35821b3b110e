"""What one holder calls its prefix blocks, in both tiers and on the way between them."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nebula_protocol.hashing import HashArray
from nebula_router.core.holder_table import HolderTable
from nebula_router.core.key_map import ABSENT, BoolArray, IntArray, KeyMap

GRACE_S = 5.0
"""Events of the two topics have no order among each other: one may run this much ahead of the other."""

_MAX_EARLY = 16_384
_MAX_UNPLACED = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class Departure:
    """Blocks that left the device tier together, by name and by handle of the row."""

    at_s: float
    names: HashArray
    handles: IntArray


class BlockNames:
    """Engine block hashes of one holder, and the rows they stand for.

    A name lives as long as a tier of the holder has the block. Memory per name: 43 to 85 bytes. Bounded: names of rows
    that made room for others are dropped before the map grows, and names without a row are capped.
    """

    def __init__(self, table: HolderTable) -> None:
        self._table = table
        self._handles = KeyMap()
        self._departures: deque[Departure] = deque()
        self._early: dict[int, float] = {}
        self._unplaced: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._handles)

    @property
    def is_empty(self) -> bool:
        return not (len(self._handles) or self._departures or self._early or self._unplaced)

    def rows_of(self, names: HashArray) -> IntArray:
        """Shape [names]; `ABSENT` for an unknown one and for a row that made room for others."""
        return self._table.rows_of(self._handles.find(names))

    def put(self, names: HashArray, rows: IntArray) -> None:
        if self._handles.would_grow(len(names)):
            self._handles.retain(self._table.is_alive)
        self._handles.put(names, self._table.handles_of(rows))
        if self._unplaced:
            self.forget_unplaced(names.tolist())

    def drop(self, names: HashArray) -> None:
        self._handles.pop(names)

    def retain(self, column: HashArray, bit: np.uint64) -> None:
        """Keeps the names of rows whose word in `column`, shape [rows of the table], has the bit. O(names)."""

        def is_held(handles: IntArray) -> BoolArray:
            rows = self._table.rows_of(handles)
            held: BoolArray = (rows != ABSENT) & ((column.take(rows, mode="clip") & bit) != 0)
            return held

        self._handles.retain(is_held)

    def clear(self) -> None:
        self._handles.clear()
        self._departures.clear()
        self._early.clear()
        self._unplaced.clear()

    # ---- from the device tier to the store ----

    def depart(self, names: HashArray, rows: IntArray, now_s: float) -> None:
        """The blocks left the device tier; their names stay for a while, since the store may have taken them."""
        self._departures.append(Departure(now_s, names, self._table.handles_of(rows)))

    def take_departed(self, now_s: float) -> list[Departure]:
        """Those that waited long enough."""
        taken: list[Departure] = []
        while self._departures and self._departures[0].at_s <= now_s - GRACE_S:
            taken.append(self._departures.popleft())
        return taken

    # ---- in the store before the device tier told of them ----

    def expect(self, names: Iterable[int], now_s: float) -> None:
        """The store has blocks that are unknown: the event that says what they are should be on its way."""
        for name in names:
            if name not in self._unplaced:
                self._early.setdefault(name, now_s)

    def forget_early(self, names: Iterable[int]) -> None:
        for name in names:
            self._early.pop(name, None)

    def take_early(self, names: HashArray) -> BoolArray | None:
        """Which of the blocks the store already has, shape [names]; None for none."""
        if not self._early:
            return None
        return np.array([self._early.pop(name, None) is not None for name in names.tolist()], dtype=np.bool_)

    def drop_overdue(self, now_s: float) -> bool:
        """Whether the store has blocks that never were announced; they are forgotten."""
        num_before = len(self._early)
        while self._early:
            oldest = next(iter(self._early))
            if self._early[oldest] > now_s - GRACE_S and len(self._early) <= _MAX_EARLY:
                break
            del self._early[oldest]
        return len(self._early) < num_before

    # ---- without a place ----

    def mark_unplaced(self, names: Iterable[int]) -> None:
        """Blocks behind an unknown one: they cannot be hits, and neither can what comes after them."""
        self._unplaced.update(dict.fromkeys(names))
        while len(self._unplaced) > _MAX_UNPLACED:
            del self._unplaced[next(iter(self._unplaced))]

    def is_unplaced(self, name: int) -> bool:
        return name in self._unplaced

    def forget_unplaced(self, names: Iterable[int]) -> None:
        for name in names:
            self._unplaced.pop(name, None)
