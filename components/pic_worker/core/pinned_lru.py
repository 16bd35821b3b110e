"""Entries in order of last use, some of them pinned."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class PinnedLru(Generic[K]):
    """Keys with sizes in tokens; a pinned key cannot be evicted. Every operation is O(1).

    Pinned keys leave the order and come back as the most recently used when their last pin goes, so that finding a
    victim never walks over pinned ones.
    """

    def __init__(self) -> None:
        self.used_tokens = 0
        self.idle_tokens = 0
        """Of the entries that are not pinned."""
        self._size_tokens: dict[K, int] = {}
        self._idle: OrderedDict[K, None] = OrderedDict()
        self._pins: dict[K, int] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._size_tokens

    def __len__(self) -> int:
        return len(self._size_tokens)

    def __iter__(self) -> Iterator[K]:
        return iter(self._size_tokens)

    def add(self, key: K, size_tokens: int) -> None:
        """A new key, the most recently used."""
        self._size_tokens[key] = size_tokens
        self._idle[key] = None
        self.used_tokens += size_tokens
        self.idle_tokens += size_tokens

    def touch(self, key: K) -> None:
        if key in self._idle:
            self._idle.move_to_end(key)

    def pin(self, key: K) -> None:
        """Counts; every pin needs its `unpin`."""
        pins = self._pins.get(key, 0)
        if not pins:
            del self._idle[key]
            self.idle_tokens -= self._size_tokens[key]
        self._pins[key] = pins + 1

    def unpin(self, key: K) -> None:
        pins = self._pins[key] - 1
        if pins:
            self._pins[key] = pins
            return
        del self._pins[key]
        self._idle[key] = None
        self.idle_tokens += self._size_tokens[key]

    def num_pins(self, key: K) -> int:
        return self._pins.get(key, 0)

    def evict_oldest(self) -> K:
        """Removes the least recently used key that is not pinned.

        Raises:
            KeyError: all are pinned, or there are none.
        """
        key, _ = self._idle.popitem(last=False)
        size_tokens = self._size_tokens.pop(key)
        self.used_tokens -= size_tokens
        self.idle_tokens -= size_tokens
        return key

    def evict_idle(self) -> list[K]:
        """Removes every key that is not pinned, the least recently used first."""
        return [self.evict_oldest() for _ in range(len(self._idle))]
