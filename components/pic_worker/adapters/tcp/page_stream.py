"""A segment's pages through a socket, digested while they are in the processor's cache."""

from collections.abc import Iterator, Sequence

import xxhash

from pic_worker.adapters.page_digest import page_views
from pic_worker.adapters.tcp.frame_socket import FrameSocket
from pic_worker.core.arena_ids import Page
from pic_worker.transport import PageMemory

_PIECE_BYTES = 1 << 19


async def send_pages(channel: FrameSocket, memory: PageMemory, pages: Sequence[Page]) -> tuple[int, ...]:
    """Digests of what was read, of each rank.

    Raises:
        ChannelLostError: the other side is gone.
    """
    digests: list[int] = []
    for rank in range(memory.num_ranks):
        digest = xxhash.xxh3_64()
        for piece in _pieces(memory, rank, pages):
            digest.update(piece)
            await channel.send_views((piece,))
        digests.append(digest.intdigest())
    return tuple(digests)


async def receive_pages(channel: FrameSocket, memory: PageMemory, pages: Sequence[Page]) -> tuple[int, ...]:
    """Digests of what was written, of each rank.

    Raises:
        ChannelLostError: the other side is gone.
    """
    digests: list[int] = []
    for rank in range(memory.num_ranks):
        digest = xxhash.xxh3_64()
        for piece in _pieces(memory, rank, pages):
            await channel.receive_views((piece,))
            digest.update(piece)
        digests.append(digest.intdigest())
    return tuple(digests)


def _pieces(memory: PageMemory, rank: int, pages: Sequence[Page]) -> Iterator[memoryview]:
    for view in page_views(memory, rank, pages):
        for start in range(0, len(view), _PIECE_BYTES):
            yield view[start : start + _PIECE_BYTES]
