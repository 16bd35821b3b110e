"""Which pages of the arena are free."""

from collections.abc import Sequence

from pic_worker.core.arena_ids import Page


class PagePool:
    """Pages 0 to `num_pages` - 1. Those freed last are used first, being the likeliest in a cache. O(1) a page."""

    def __init__(self, num_pages: int) -> None:
        self._free = [Page(number) for number in range(num_pages - 1, -1, -1)]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, num_pages: int) -> tuple[Page, ...]:
        """
        Raises:
            ValueError: fewer are free.
        """
        if num_pages > len(self._free):
            raise ValueError(f"{num_pages} pages wanted of {len(self._free)} free ones")
        return tuple(self._free.pop() for _ in range(num_pages))

    def give_back(self, pages: Sequence[Page]) -> None:
        self._free.extend(reversed(pages))
