"""Entries in order of last use, some of them pinned."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class PinnedLru(Generic[K]):
    """Keys with sizes in tokens; a pinned key cannot be evicted. O(1) a key.

    Pinned keys leave the order and come back as the most recently used when their last pin goes, so that finding a
    victim never walks over pinned ones.
    """

    def __init__(self) -> None:
        self.used_tokens = 0
        self.idle_tokens = 0
        """Of the entries that are not pinned."""
        self._size_tokens: dict[K, int] = {}
        self._idle: OrderedDict[K, int] = OrderedDict()
        self._pins: dict[K, int] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._size_tokens

    def __len__(self) -> int:
        return len(self._size_tokens)

    def __iter__(self) -> Iterator[K]:
        return iter(self._size_tokens)

    def oldest(self) -> K | None:
        """The one that would be evicted first; None where all that is left is pinned."""
        return next(iter(self._idle), None)

    def touch_or_absent(self, keys: Iterable[K]) -> list[K]:
        """Makes those of `keys` that are here the most recently used; returns the others."""
        sizes, idle = self._size_tokens, self._idle
        absent: list[K] = []
        for key in keys:
            if key not in sizes:
                absent.append(key)
            elif key in idle:
                idle.move_to_end(key)
        return absent

    def add(self, keys: Sequence[K], size_tokens: int) -> None:
        """New keys of one size, the last of them the most recently used."""
        sizes = dict.fromkeys(keys, size_tokens)
        self._size_tokens.update(sizes)
        self._idle.update(sizes)
        self.used_tokens += size_tokens * len(keys)
        self.idle_tokens += size_tokens * len(keys)

    def pin(self, key: K) -> None:
        """Counts; every pin needs its `unpin`."""
        pins = self._pins.get(key, 0)
        if not pins:
            self.idle_tokens -= self._idle.pop(key)
        self._pins[key] = pins + 1

    def unpin(self, key: K) -> None:
        pins = self._pins[key] - 1
        if pins:
            self._pins[key] = pins
            return
        del self._pins[key]
        size_tokens = self._size_tokens[key]
        self._idle[key] = size_tokens
        self.idle_tokens += size_tokens

    def is_pinned(self, key: K) -> bool:
        return key in self._pins

    def remove(self, key: K) -> None:
        """Takes out a key that is not pinned."""
        size_tokens = self._idle.pop(key)
        del self._size_tokens[key]
        self.used_tokens -= size_tokens
        self.idle_tokens -= size_tokens

    def evict(self, num_tokens: int) -> list[K]:
        """Removes the least recently used keys until `num_tokens` are free or all that is left is pinned."""
        sizes, idle = self._size_tokens, self._idle
        evicted: list[K] = []
        freed_tokens = 0
        while freed_tokens < num_tokens and idle:
            key, size_tokens = idle.popitem(last=False)
            del sizes[key]
            freed_tokens += size_tokens
            evicted.append(key)
        self.used_tokens -= freed_tokens
        self.idle_tokens -= freed_tokens
        return evicted
