"""One of the two classes that share the store: how much room in the cluster keeps an entry of it."""

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from nebula_router.core.ghost import GhostList, Mark

K = TypeVar("K", bound=Hashable)

_GHOST_BOUND_RATIO = 1.25
"""How deep ghosts are kept, over the most room that the class can have."""

_MIN_COPIES = 0.5
_MAX_COPIES = 64.0
_LEARNING_RATIO = 0.25
"""Losses of this share of the store's tokens replace what was known of copies."""


class ReuseClass(Generic[K]):
    """Depths count each entry once; the cluster's caches may hold copies, and lose entries sooner than one LRU would.

    What is between the two is measured where entries are lost: at the depth at which the class's present room ends.
    """

    def __init__(self, *, max_entries: int) -> None:
        self.ghosts: GhostList[K] = GhostList(bound_tokens=1.0, max_entries=max_entries)
        self.copies = 1.0
        """Tokens of room for each token of depth."""
        self._learning_tokens = 0.0

    @property
    def wanted_tokens(self) -> float:
        """Room that would keep all that is known."""
        return self.ghosts.num_tokens * self.copies

    def set_room(self, *, store_tokens: float, most_tokens: float) -> None:
        """
        Args:
            store_tokens: of all stores, both classes.
            most_tokens: what the class has when the stores are all its own.
        """
        self._learning_tokens = store_tokens * _LEARNING_RATIO
        self.ghosts.set_bound(most_tokens * _GHOST_BOUND_RATIO)

    def room_of(self, mark: Mark) -> float:
        """Room for the class that makes the entry a hit; infinite where none does."""
        return self.ghosts.depth_of(mark) * self.copies

    def record_lost(self, keys: Sequence[K], tokens_each: float, *, room_tokens: float) -> None:
        """Entries gave way to others while the class had this much room."""
        depths = self.ghosts.lose(keys)
        if not depths or not self._learning_tokens:
            return
        seen = room_tokens * len(depths) / max(1.0, sum(depths))
        share = min(1.0, tokens_each * len(depths) / self._learning_tokens)
        self.copies *= (min(max(seen, _MIN_COPIES), _MAX_COPIES) / self.copies) ** share
