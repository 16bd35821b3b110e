"""vLLM's own events about its prefix cache as the worker's device events."""

from collections.abc import Callable
from typing import assert_never

import numpy as np
import structlog

from nebula_protocol.hashing import HashArray
from nebula_protocol.ids import BlockHash
from nebula_protocol.tokens import TokenArray, as_token_array
from pic_worker.adapters.vllm.block_event_wire import (
    AllBlocksCleared,
    BlockEventBatch,
    BlockRemoved,
    BlockStored,
    block_name,
)
from pic_worker.core.event_log import EventLog
from pic_worker.core.state_mirror import StateMirror

log = structlog.get_logger()

LineageHasher = Callable[[TokenArray, int, str], HashArray]
"""(tokens, block_size_tokens, lineage) to block hashes, shape [full blocks]; the lineage may be empty."""


class DeviceBlocks:
    """Writes into the log and the mirror what vLLM tells of its prefix cache."""

    def __init__(
        self, *, mirror: StateMirror, event_log: EventLog, block_size_tokens: int, hash_blocks: LineageHasher
    ) -> None:
        self._mirror = mirror
        self._log = event_log
        self._block_size_tokens = block_size_tokens
        self._hash_blocks = hash_blocks

    def apply(self, batch: BlockEventBatch) -> None:
        for event in batch.events:
            match event:
                case BlockStored():
                    self._stored(event)
                case BlockRemoved():
                    names = list(map(block_name, event.block_hashes))
                    self._log.record_blocks_removed(self._mirror.remove_device_blocks(names))
                case AllBlocksCleared():
                    self.clear()
                case _:
                    assert_never(event)

    def clear(self) -> None:
        """Nothing is known any more of the device tier, or it is empty."""
        self._log.record_blocks_removed(self._mirror.clear_device())

    def _stored(self, event: BlockStored) -> None:
        if event.block_size != self._block_size_tokens:
            # The cached part of a last block that is not full.
            return
        parent_hash = None if event.parent_block_hash is None else block_name(event.parent_block_hash)
        lineage = _salt_of(event) if parent_hash is None else self._mirror.lineage_of(parent_hash)
        if lineage is None:
            log.warning("block_of_unknown_parent", parent_hash=parent_hash, num_blocks=len(event.block_hashes))
            return
        tokens = as_token_array(event.token_ids)
        names = tuple(map(block_name, event.block_hashes))
        hashes = self._hash_blocks(tokens, self._block_size_tokens, lineage)
        tokens_hashes = [BlockHash(int(tokens_hash)) for tokens_hash in hashes.astype(np.uint64)]
        self._mirror.put_device_blocks(lineage, parent_hash, names, tokens_hashes)
        self._log.record_blocks_stored(
            lineage=lineage,
            parent_hash=parent_hash,
            block_hashes=names,
            tokens_hashes=tokens_hashes,
            tokens=tokens,
        )


def _salt_of(event: BlockStored) -> str:
    """Without LoRA, images and embeddings, which this worker does not serve, a salt is the only text there."""
    first = event.extra_keys[0] if event.extra_keys else None
    return next((key for key in first or () if isinstance(key, str)), "")
