"""One rank's arena for a benchmark."""

import os
from typing import Self

from pic_worker.adapters.data_plane import StoreShape

_SEED_BYTE = 0x5A


class BenchMemory:
    """Shared memory, populated at once; use as a context."""

    def __init__(self, num_pages: int, page_tokens: int, page_bytes: int) -> None:
        self.num_bytes = num_pages * page_bytes
        self._file = os.memfd_create("nebula-bench", os.MFD_CLOEXEC)
        os.posix_fallocate(self._file, 0, self.num_bytes)
        path = f"/proc/{os.getpid()}/fd/{self._file}"
        self.shape = StoreShape(arena_paths=(path,), page_tokens=page_tokens, page_bytes=page_bytes)

    def fill(self) -> None:
        block = bytes(byte ^ _SEED_BYTE for byte in range(256)) * 4096
        for start in range(0, self.num_bytes, len(block)):
            os.pwrite(self._file, block[: self.num_bytes - start], start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)
