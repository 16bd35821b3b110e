"""Prefix blocks over both tiers: look-up, admission with eviction to the store, and naming of finished blocks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nebula_protocol.events import BlockEntry
from nebula_protocol.ids import BlockHash, EngineBlockHash
from nebula_protocol.tokens import TokenArray
from pic_worker.core.block_chain import BlockChain
from pic_worker.core.device_pool import BlockTable, DevicePool
from pic_worker.core.event_log import EventLog
from pic_worker.core.store import TwoClassStore
from pic_worker.core.store_entry import Evictions

_IN_DEVICE = 1
_IN_HOST = 2


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The leading blocks of a prompt that are in either tier."""

    num_blocks: int
    device_hits: tuple[EngineBlockHash, ...]
    host_hits: tuple[EngineBlockHash, ...]
    """Only in the store: they must be loaded."""


@dataclass(slots=True)
class PromptBlocks:
    """One admitted prompt's blocks."""

    chain: BlockChain
    tokens: TokenArray
    lineage: str
    match: PrefixMatch
    table: BlockTable
    num_named: int = 0
    """Leading blocks of the chain that are complete and were offered to the cache."""
    loading: bool = True
    """The host hits are pinned in the store until they are loaded."""


# (blocks before it in its chain, parent, hash of its tokens): plain tuples, since `zip` makes them at the speed of C.
_BlockFacts = tuple[int, EngineBlockHash | None, BlockHash]


@dataclass(slots=True)
class PrefixCache:
    pool: DevicePool
    store: TwoClassStore
    log: EventLog
    block_size_tokens: int
    _facts: dict[EngineBlockHash, _BlockFacts] = field(default_factory=dict)
    """Of every block in either tier: what a snapshot tells about it."""

    def match(self, chain: BlockChain, max_blocks: int) -> PrefixMatch:
        """Walks the chain while its blocks are in either tier, over at most `max_blocks`."""
        pool, store = self.pool, self.store
        device_hits: list[EngineBlockHash] = []
        host_hits: list[EngineBlockHash] = []
        for block_hash in chain.hashes[:max_blocks]:
            if block_hash in pool:
                device_hits.append(block_hash)
            elif store.has_block(block_hash):
                host_hits.append(block_hash)
            else:
                break
        return PrefixMatch(len(device_hits) + len(host_hits), tuple(device_hits), tuple(host_hits))

    def can_admit(self, match: PrefixMatch, num_blocks: int) -> bool:
        """Whether a prompt of `num_blocks` blocks, partial ones included, fits now."""
        return self.pool.can_allocate(match.device_hits, num_blocks - len(match.device_hits))

    def admit(
        self, chain: BlockChain, tokens: TokenArray, lineage: str, match: PrefixMatch, num_blocks: int
    ) -> PromptBlocks:
        """Takes the blocks of a whole prompt; `can_admit` must have said yes. Blocks that give way go to the store."""
        self.store.pin_blocks(match.host_hits)
        table = self._allocate(match.device_hits, num_blocks - len(match.device_hits))
        return PromptBlocks(chain, tokens, lineage, match, table)

    def admit_private(self, num_blocks: int) -> BlockTable:
        """Takes blocks that will never be named."""
        return self._allocate((), num_blocks)

    def name_blocks(self, blocks: PromptBlocks, num_complete: int) -> None:
        """The leading `num_complete` blocks are being computed or loaded: others may use them."""
        first, blocks.num_named = blocks.num_named, num_complete
        hashes = blocks.chain.hashes
        # The hits among them are cached already, as are blocks that another request computed at the same time.
        cached = self.pool.cache(blocks.table, hashes[first:num_complete])
        self._record_new(blocks, [at for at in range(first, num_complete) if hashes[at] not in cached])

    def release(self, blocks: PromptBlocks) -> None:
        """The request no longer needs its blocks; the named ones stay cached."""
        self.finish_loading(blocks)
        self.pool.release(blocks.table)

    def clear(self) -> None:
        """Drops all that is not in use, from the device tier and from the store with both its classes."""
        freed, dropped = self.pool.evict_free(), self.store.clear()
        self.log.record_blocks_removed(freed)
        self.log.record_cleared(dropped, is_empty=self.store.used_tokens == 0)
        gone = self.pool.absent(freed + dropped.blocks)
        self._forget(block_hash for block_hash in gone if not self.store.has_block(block_hash))

    def record_store_evictions(self, evictions: Evictions) -> None:
        """Entries gave way in the store, blocks perhaps among them."""
        self.log.record_evictions(evictions)
        self._forget(self.pool.absent(evictions.blocks))

    def block_entries(self) -> tuple[BlockEntry, ...]:
        """All blocks of both tiers, parents before children."""
        tiers = dict.fromkeys(self.pool.blocks(), _IN_DEVICE)
        for block_hash in self.store.blocks():
            tiers[block_hash] = tiers.get(block_hash, 0) | _IN_HOST
        by_depth = sorted(((self._facts[block_hash], block_hash) for block_hash in tiers), key=_depth)
        return tuple(
            BlockEntry(block_hash, parent_hash, tokens_hash, tiers[block_hash])
            for (_, parent_hash, tokens_hash), block_hash in by_depth
        )

    def _allocate(self, hits: Sequence[EngineBlockHash], num_new: int) -> BlockTable:
        table, evicted = self.pool.allocate(hits, num_new)
        if evicted:
            put = self.store.put_blocks(evicted)
            self.record_store_evictions(put.evictions)
            # The host copy is announced before the device copy is taken back, so that no reader of both topics
            # sees the block nowhere.
            self.log.record_host_blocks_stored(put.stored)
            self.log.record_blocks_removed(evicted)
            if len(put.stored) < len(evicted):
                self._forget(block_hash for block_hash in evicted if not self.store.has_block(block_hash))
        return table

    def _forget(self, block_hashes: Iterable[EngineBlockHash]) -> None:
        for block_hash in block_hashes:
            self._facts.pop(block_hash, None)

    def finish_loading(self, blocks: PromptBlocks) -> None:
        """The host hits are in the device tier."""
        if blocks.loading:
            blocks.loading = False
            # From the tail, so that heads of chains are the last to be evicted.
            self.store.unpin_blocks(blocks.match.host_hits[::-1])

    def _record_new(self, blocks: PromptBlocks, indices: Sequence[int]) -> None:
        """One event for each unbroken run of new blocks."""
        start = 0
        for at in range(1, len(indices) + 1):
            if at == len(indices) or indices[at] != indices[at - 1] + 1:
                self._record_run(blocks, indices[start], indices[at - 1] + 1)
                start = at

    def _record_run(self, blocks: PromptBlocks, first: int, end: int) -> None:
        chain = blocks.chain
        parent_hash = chain.hashes[first - 1] if first else None
        self._remember(chain, first, end)
        size = self.block_size_tokens
        self.log.record_blocks_stored(
            lineage=blocks.lineage,
            parent_hash=parent_hash,
            block_hashes=chain.hashes[first:end],
            tokens_hashes=chain.tokens_hashes[first:end],
            tokens=blocks.tokens[first * size : end * size],
        )

    def _remember(self, chain: BlockChain, first: int, end: int) -> None:
        hashes = chain.hashes[first:end]
        parents = (None, *chain.hashes[: end - 1]) if first == 0 else chain.hashes[first - 1 : end - 1]
        facts = zip(range(first, end), parents, chain.tokens_hashes[first:end], strict=True)
        self._facts.update(zip(hashes, facts, strict=True))


def _depth(block: tuple[_BlockFacts, EngineBlockHash]) -> int:
    return block[0][0]
