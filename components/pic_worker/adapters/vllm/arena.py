"""A rank's part of the store: pages of KV in host memory that another process of the same user can map."""

import contextlib
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from pic_worker.core.arena_ids import Page
from pic_worker.errors import StartError


@dataclass(frozen=True, slots=True)
class PageShape:
    """A page holds, in this order of axes: layer, key or value, token, head, dimension."""

    num_layers: int
    page_tokens: int
    num_kv_heads: int
    """Of this rank."""
    head_dim: int
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return 2 * self.num_layers * self.page_tokens * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class Arena:
    """`num_pages` pages side by side.

    The memory is anonymous and goes when the last process that maps it has closed it, however that ended. It is
    populated at once: a store that does not fit shows at start, not after hours.
    """

    def __init__(self, shape: PageShape, num_pages: int, *, is_pinned: bool) -> None:
        """
        Raises:
            StartError: the host has not enough memory, or it cannot be pinned.
        """
        self._shape = shape
        self._num_bytes = num_pages * shape.num_bytes
        _require_memory(self._num_bytes)
        self._file = os.memfd_create("nebula-arena", os.MFD_CLOEXEC)
        self._map = self._map_file()
        flat = torch.frombuffer(self._map, dtype=torch.uint8).view(shape.dtype)
        # A row is one token's keys or values in one layer.
        self._rows = flat.view(-1, shape.num_kv_heads, shape.head_dim)
        self._is_pinned = is_pinned
        if is_pinned:
            self._pin()

    @property
    def path(self) -> str:
        """Opened by another process, it maps the same memory; valid until `close`."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @property
    def shape(self) -> PageShape:
        return self._shape

    def rows_of(self, pages: Sequence[Page], num_tokens: int, *, skip_tokens: int = 0) -> torch.Tensor:
        """Where tokens [skip, skip + num) of a sequence kept in `pages` lie, for `read` and `write`: int64, [num].

        Raises:
            IndexError: the pages hold fewer tokens.
        """
        token = torch.arange(skip_tokens, skip_tokens + num_tokens)
        page_tokens = self._shape.page_tokens
        page = torch.tensor(pages, dtype=torch.int64)[token // page_tokens]
        return page * (2 * self._shape.num_layers * page_tokens) + token % page_tokens

    def read(self, layer: int, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, each [tokens, heads, dimension], as copies."""
        first = rows + self._offset(layer)
        return self._rows.index_select(0, first), self._rows.index_select(0, first + self._shape.page_tokens)

    def write(self, layer: int, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        first = rows + self._offset(layer)
        self._rows.index_copy_(0, first, keys.cpu())
        self._rows.index_copy_(0, first + self._shape.page_tokens, values.cpu())

    def close(self) -> None:
        """Gives the memory back; nothing else may be called after it, but it may be called again."""
        if self._file < 0:
            return
        if self._is_pinned:
            _cudart().cudaHostUnregister(self._rows.data_ptr())
        self._rows = torch.empty(0)
        # Where a reader still holds a view, the memory goes with that.
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self._file)
        self._file = -1

    def _offset(self, layer: int) -> int:
        return 2 * layer * self._shape.page_tokens

    def _map_file(self) -> mmap.mmap:
        try:
            os.ftruncate(self._file, self._num_bytes)
            return mmap.mmap(self._file, self._num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except (OSError, ValueError) as error:
            os.close(self._file)
            raise StartError(f"no {self._num_bytes} bytes of host memory for the KV store: {error}") from error

    def _pin(self) -> None:
        status = int(_cudart().cudaHostRegister(self._rows.data_ptr(), self._num_bytes, 0))
        if status != 0:
            self._is_pinned = False
            self.close()
            raise StartError(f"{self._num_bytes} bytes of host memory for the KV store cannot be pinned: CUDA {status}")


def _require_memory(num_bytes: int) -> None:
    # Asked first: the kernel would hand out pages to the last one and then kill whom it finds.
    available_bytes = psutil.virtual_memory().available
    if num_bytes > available_bytes:
        raise StartError(f"the KV store takes {num_bytes} bytes of host memory, and {available_bytes} are available")


def _cudart() -> Any:
    # PyTorch gives it no type.
    cuda: Any = torch.cuda
    return cuda.cudart()
