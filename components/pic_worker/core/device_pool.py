"""The engine's own paged prefix cache, after vLLM's block pool: blocks by hash, counted references, LRU free queue."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nebula_protocol.ids import EngineBlockHash


@dataclass(slots=True)
class BlockTable:
    """The blocks that one request holds."""

    shared: list[EngineBlockHash] = field(default_factory=list)
    """Cached under their hash, so that other requests may hold them too; in chain order."""
    num_private: int = 0
    """Not cached: partial, not computed yet, or computed twice at the same time."""

    @property
    def num_blocks(self) -> int:
        return len(self.shared) + self.num_private


class DevicePool:
    """A fixed number of blocks. A block is held, or cached and free for the taking, or blank.

    Blank blocks are taken first, then the free cached one whose last holder left longest ago; of one request's
    blocks the last goes first, so that a chain loses its tail and keeps its head. Blocks have no numbers here:
    where KV lies does not matter to its time.
    """

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity_blocks = capacity_blocks
        self._holders: dict[EngineBlockHash, int] = {}
        self._free: OrderedDict[EngineBlockHash, None] = OrderedDict()
        self._num_private = 0

    @property
    def capacity_blocks(self) -> int:
        return self._capacity_blocks

    @property
    def num_held(self) -> int:
        return len(self._holders) - len(self._free) + self._num_private

    @property
    def num_cached(self) -> int:
        return len(self._holders)

    def __contains__(self, block_hash: EngineBlockHash) -> bool:
        return block_hash in self._holders

    def absent(self, block_hashes: Iterable[EngineBlockHash]) -> list[EngineBlockHash]:
        """Those that are not cached here."""
        holders = self._holders
        return [block_hash for block_hash in block_hashes if block_hash not in holders]

    def blocks(self) -> tuple[EngineBlockHash, ...]:
        return tuple(self._holders)

    def can_allocate(self, hits: Iterable[EngineBlockHash], num_new: int) -> bool:
        """Whether there is room for cached blocks `hits` and `num_new` others."""
        free_hits = sum(block_hash in self._free for block_hash in hits)
        return num_new + free_hits <= self._capacity_blocks - self.num_held

    def allocate(self, hits: Sequence[EngineBlockHash], num_new: int) -> tuple[BlockTable, tuple[EngineBlockHash, ...]]:
        """Takes the cached blocks `hits` and `num_new` private ones; `can_allocate` must have said yes.

        Returns:
            What the request now holds, and the cached blocks that gave way, in the order of eviction.
        """
        holders, free = self._holders, self._free
        for block_hash in hits:
            holders[block_hash] += 1
            free.pop(block_hash, None)
        num_blank = self._capacity_blocks - len(holders) - self._num_private
        evicted = tuple([free.popitem(last=False)[0] for _ in range(num_new - num_blank)])
        for block_hash in evicted:
            del holders[block_hash]
        self._num_private += num_new
        return BlockTable(list(hits), num_new), evicted

    def cache(self, table: BlockTable, block_hashes: Sequence[EngineBlockHash]) -> frozenset[EngineBlockHash]:
        """Names private blocks of `table` that are complete now.

        Returns:
            Those that were cached before, by this request's hits or by another request first: not named again.
        """
        holders = self._holders
        cached = frozenset(holders.keys() & block_hashes)
        new = [block_hash for block_hash in block_hashes if block_hash not in cached] if cached else block_hashes
        holders.update(dict.fromkeys(new, 1))
        table.shared.extend(new)
        table.num_private -= len(new)
        self._num_private -= len(new)
        return cached

    def release(self, table: BlockTable) -> None:
        """The request is gone; its cached blocks become free, the last of the chain to be evicted first."""
        holders, free = self._holders, self._free
        for block_hash in reversed(table.shared):
            holders[block_hash] -= 1
            if not holders[block_hash]:
                free[block_hash] = None
        self._num_private -= table.num_private
        table.shared.clear()
        table.num_private = 0

    def evict_free(self) -> tuple[EngineBlockHash, ...]:
        """Drops every cached block that nobody holds."""
        evicted = tuple(self._free)
        for block_hash in evicted:
            del self._holders[block_hash]
        self._free.clear()
        return evicted
