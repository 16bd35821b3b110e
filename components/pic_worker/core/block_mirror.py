"""What the blocks of the device tier hold, as far as it can be seen from outside."""

from collections.abc import Iterable
from typing import NamedTuple


class BlockContent(NamedTuple):
    block_hash: bytes
    """The engine's whole hash."""
    is_injected: bool
    """Some of its KV came from a segment computed elsewhere."""


class LeavingBlock(NamedTuple):
    """A block whose content is about to be overwritten, the last of its kind in the device tier."""

    block_id: int
    content: BlockContent


class BlockMirror:
    """Block id to content of blocks that are complete once the steps asked for so far are done. O(1) a block.

    The engine forgets a block's hash when it hands the block out again, and tells nobody; its KV is still there until
    the step that was planned then writes to it. So: `record` what a step completes, and ask `overwrite` about the
    blocks that the next plan hands out.
    """

    def __init__(self) -> None:
        self._contents: dict[int, BlockContent] = {}
        self._copies: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._contents)

    def holds(self, block_id: int, block_hash: bytes) -> bool:
        content = self._contents.get(block_id)
        return content is not None and content.block_hash == block_hash

    def is_injected(self, block_id: int, block_hash: bytes) -> bool | None:
        """None where the block is not known to hold this."""
        content = self._contents.get(block_id)
        return content.is_injected if content is not None and content.block_hash == block_hash else None

    def record(self, block_id: int, content: BlockContent) -> None:
        self._forget(block_id)
        self._contents[block_id] = content
        self._copies[content.block_hash] = self._copies.get(content.block_hash, 0) + 1

    def overwrite(self, block_ids: Iterable[int]) -> list[LeavingBlock]:
        """The blocks were handed out to be written; returns what goes out of the device tier, in the order given."""
        gone: dict[bytes, LeavingBlock] = {}
        for block_id in block_ids:
            content = self._forget(block_id)
            if content is not None:
                gone[content.block_hash] = LeavingBlock(block_id, content)
        return [leaving for block_hash, leaving in gone.items() if block_hash not in self._copies]

    def clear(self) -> None:
        self._contents.clear()
        self._copies.clear()

    def _forget(self, block_id: int) -> BlockContent | None:
        content = self._contents.pop(block_id, None)
        if content is not None:
            copies = self._copies[content.block_hash] - 1
            if copies:
                self._copies[content.block_hash] = copies
            else:
                del self._copies[content.block_hash]
        return content
