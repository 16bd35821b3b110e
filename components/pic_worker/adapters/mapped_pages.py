"""The ranks' arenas in this process: the same memory, mapped once more."""

import contextlib
import ctypes
import mmap
import os
from collections.abc import Sequence

from pic_worker.core.arena_ids import Page
from pic_worker.errors import StartError

_ANCHORS: list[ctypes.c_char] = []
"""Each keeps the memory that it is the first byte of."""


class MappedPages:
    """`PageMemory` over files of shared memory, one a rank."""

    def __init__(self, paths: Sequence[str], page_bytes: int) -> None:
        """
        Args:
            paths: as `Arena.path` names them, in the order of ranks.

        Raises:
            StartError: one cannot be mapped, or they differ in size.
        """
        self._page_bytes = page_bytes
        self._maps: list[mmap.mmap] = []
        self._views: list[memoryview] = []
        try:
            for path in paths:
                self._maps.append(_map_file(path))
        except (OSError, ValueError) as error:
            self.close()
            raise StartError(f"the engine's KV store cannot be shared: {error}") from error
        sizes = {len(mapped) for mapped in self._maps}
        if len(sizes) != 1 or min(sizes) % page_bytes:
            self.close()
            raise StartError(f"the ranks' KV stores have {sorted(sizes)} bytes, in pages of {page_bytes}")
        self._num_pages = min(sizes) // page_bytes
        self._views = [memoryview(mapped) for mapped in self._maps]

    @property
    def num_ranks(self) -> int:
        return len(self._maps)

    @property
    def num_pages(self) -> int:
        return self._num_pages

    @property
    def page_bytes(self) -> int:
        return self._page_bytes

    def view(self, rank: int, first: Page, num_pages: int) -> memoryview:
        if not (first >= 0 and 0 < num_pages <= self._num_pages - first):
            raise IndexError(f"pages {first} to {first + num_pages} of {self._num_pages}")
        return self._views[rank][first * self._page_bytes : (first + num_pages) * self._page_bytes]

    def address(self, rank: int) -> int:
        """Of the rank's first byte, in this process; from now on the memory stays mapped until the process ends."""
        # Whoever knows the address may still write there when this object is closed.
        anchor = ctypes.c_char.from_buffer(self._maps[rank])
        _ANCHORS.append(anchor)
        return ctypes.addressof(anchor)

    def close(self) -> None:
        for view in self._views:
            view.release()
        for mapped in self._maps:
            # Where a view is still about, the memory goes with that.
            with contextlib.suppress(BufferError):
                mapped.close()


def _map_file(path: str) -> mmap.mmap:
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(file, 0, flags=mmap.MAP_SHARED)
    finally:
        os.close(file)
