"""One class of entries in order of last use: those that are held, and the ghosts of those that room was lacking for."""

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import accumulate, repeat
from math import inf
from typing import Generic, NewType, TypeVar

K = TypeVar("K", bound=Hashable)

Mark = NewType("Mark", int)
"""When an entry was last used, and whether it is a ghost; entries that were used together mostly share it."""

UNKNOWN = Mark(-1)

_MAX_GROUPS = 256
_GROUPS_PER_BOUND = _MAX_GROUPS // 2
_MIN_STALE = 1024


class GhostList(Generic[K]):
    """A least-recently-used stack that goes deeper than the caches: an entry's depth is the room that would keep it.

    The depth of an entry is the number of tokens of distinct entries used since it was (Mattson et al. 1970): a cache
    of the class keeps it when it has at least that much room, whatever it has now. An entry is held until `lose` makes
    it a ghost, which ends when it is used again or forgotten. Entries deeper than the bound are dropped.

    Depths are exact to 1/128 of the bound: entries of about one age share a group, whose tokens are counted together
    (as in Counter Stacks, Wires et al. 2014). Everything is O(1) an entry, amortised.
    """

    def __init__(self, *, bound_tokens: float, max_entries: int) -> None:
        self._max_entries = max_entries
        self._marks: dict[K, Mark] = {}
        self._newest = 0
        # By group, oldest first; a group's entries were marked from its first mark on.
        self._first_marks = [0]
        self._tokens = [0.0]
        self._counts = [0]
        self._depths = [0.0]
        self._num_tokens = 0.0
        self._unmeasured_tokens = 0.0
        self.set_bound(bound_tokens)

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def num_tokens(self) -> float:
        """Of all entries within the bound, held or not."""
        return self._num_tokens

    def set_bound(self, bound_tokens: float) -> None:
        """How deep ghosts are kept, from the next use on."""
        self._bound_tokens = bound_tokens
        self._width_tokens = bound_tokens / _GROUPS_PER_BOUND

    # ---- look-up ----

    def marks_of(self, keys: Iterable[K]) -> list[Mark]:
        """`UNKNOWN` where an entry was never used or was dropped."""
        return list(map(self._marks.get, keys, repeat(UNKNOWN)))

    def depth_of(self, mark: Mark) -> float:
        """Infinite for `UNKNOWN`. Valid until the next change."""
        group = self._group_of(mark)
        return inf if group is None else self._depths[group]

    @staticmethod
    def is_ghost(mark: Mark) -> bool:
        return mark >= 0 and mark & 1 == 1

    # ---- changes ----

    def use(self, tokens_of: Mapping[K, float]) -> None:
        """Entries of these sizes are held, and the most recently used ones, from now on."""
        self._uncount(self.marks_of(tokens_of), tokens_of.values())
        self._marks.update(dict.fromkeys(tokens_of, Mark(self._newest << 1)))
        num_tokens = sum(tokens_of.values())
        self._num_tokens += num_tokens
        self._tokens[-1] += num_tokens
        self._counts[-1] += len(tokens_of)
        self._unmeasured_tokens += num_tokens
        if self._tokens[-1] >= self._width_tokens:
            self._open_group()
        elif self._unmeasured_tokens >= self._width_tokens:
            self._measure()

    def lose(self, keys: Iterable[K]) -> list[float]:
        """Entries left the last cache that had them, for want of room; the depths of those that are known."""
        depths = []
        for key in keys:
            mark = self._marks.get(key, UNKNOWN)
            depth = self.depth_of(mark)
            if depth < inf:
                self._marks[key] = Mark(mark | 1)
                depths.append(depth)
        return depths

    def forget(self, keys: Iterable[K], tokens_each: float) -> None:
        """Entries are gone for a reason that room would not have changed."""
        self._uncount([self._marks.pop(key, UNKNOWN) for key in keys], repeat(tokens_each))

    # ---- groups ----

    def _group_of(self, mark: Mark) -> int | None:
        group = bisect_right(self._first_marks, mark >> 1) - 1
        return group if group >= 0 else None

    def _uncount(self, marks: Sequence[Mark], sizes: Iterable[float]) -> None:
        last, group = UNKNOWN, None
        for mark, num_tokens in zip(marks, sizes, strict=False):
            if mark != last:
                last, group = mark, self._group_of(mark)
            if group is not None:
                self._num_tokens -= num_tokens
                self._tokens[group] -= num_tokens
                self._counts[group] -= 1

    def _open_group(self) -> None:
        self._drop_deep_groups()
        if len(self._tokens) >= _MAX_GROUPS:
            self._merge_groups()
        self._newest += 1
        self._first_marks.append(self._newest)
        self._tokens.append(0.0)
        self._counts.append(0)
        self._measure()

    def _measure(self) -> None:
        """Of its own group, an entry has half before it on average."""
        through = list(accumulate(reversed(self._tokens)))
        self._depths = [end - own / 2 for end, own in zip(reversed(through), self._tokens, strict=True)]
        self._unmeasured_tokens = 0.0

    def _drop_deep_groups(self) -> None:
        num_tokens, num_entries, kept = 0.0, 0, 0
        for group_tokens, group_entries in zip(reversed(self._tokens), reversed(self._counts), strict=True):
            num_entries += group_entries
            if kept and (num_tokens >= self._bound_tokens or num_entries > self._max_entries):
                break
            num_tokens += group_tokens
            kept += 1
        if kept < len(self._tokens):
            self._num_tokens = num_tokens
            self._first_marks = self._first_marks[-kept:]
            self._tokens = self._tokens[-kept:]
            self._counts = self._counts[-kept:]
        if len(self._marks) > max(_MIN_STALE, 2 * len(self)):
            oldest = self._first_marks[0] << 1
            self._marks = {key: mark for key, mark in self._marks.items() if mark >= oldest}

    def _merge_groups(self) -> None:
        """Joins neighbours that together are no wider than one; about as many as fit into the bound are left."""
        first_marks: list[int] = []
        tokens: list[float] = []
        counts: list[int] = []
        for mark, group_tokens, group_entries in zip(self._first_marks, self._tokens, self._counts, strict=True):
            if tokens and tokens[-1] + group_tokens <= self._width_tokens:
                tokens[-1] += group_tokens
                counts[-1] += group_entries
            else:
                first_marks.append(mark)
                tokens.append(group_tokens)
                counts.append(group_entries)
        self._first_marks, self._tokens, self._counts = first_marks, tokens, counts
