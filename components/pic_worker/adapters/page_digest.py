"""Checksums of pages: a byte that changed on the way, or under the reader's hands, is noticed."""

import asyncio
from collections.abc import Sequence

import xxhash

from pic_worker.core.arena_ids import Page
from pic_worker.core.page_runs import page_runs
from pic_worker.transport import PageMemory

_PIECE_BYTES = 4 << 20
"""What is digested before others have the loop; under a millisecond."""


async def digest_pages(memory: PageMemory, pages: Sequence[Page]) -> tuple[int, ...]:
    """XXH3-64 of the pages one behind another, of each rank."""
    digests: list[int] = []
    for rank in range(memory.num_ranks):
        digest = xxhash.xxh3_64()
        for view in page_views(memory, rank, pages):
            for start in range(0, len(view), _PIECE_BYTES):
                digest.update(view[start : start + _PIECE_BYTES])
                await asyncio.sleep(0)
        digests.append(digest.intdigest())
    return tuple(digests)


def page_views(memory: PageMemory, rank: int, pages: Sequence[Page]) -> list[memoryview]:
    return [memory.view(rank, run.first, run.num_pages) for run in page_runs(pages)]
