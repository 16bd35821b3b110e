"""One worker's two cache tiers with nothing else around them: prompts go through whole, one after another."""

from collections.abc import Iterable
from dataclasses import dataclass

from nebula_bench.split.cache_prompt import BLOCK_SIZE_TOKENS, DOMAIN, CachePrompt, CacheSegment
from nebula_bench.split.store_port import Store
from nebula_protocol.ids import EngineBlockHash, Origin
from nebula_router.core.reuse_price import ReusePrice
from pic_worker.core.device_pool import DevicePool
from pic_worker.core.store_entry import Evictions, SegmentKey, StoredSegment


@dataclass(frozen=True, slots=True)
class Served:
    """What one prompt found, in tokens, and the prefill time that this saved."""

    prefix_tokens: int
    segment_tokens: int
    saved_s: float
    held_segments: tuple[bool, ...]
    """By segment of the prompt: whether the store had it."""


class Cache:
    """The worker's own device pool and one of its stores, used as its engine uses them."""

    def __init__(self, store: Store, *, device_tokens: int, price: ReusePrice) -> None:
        self.store = store
        self._pool = DevicePool(device_tokens // BLOCK_SIZE_TOKENS)
        self._price = price
        self._lost_blocks: list[EngineBlockHash] = []
        self._lost_segments: list[SegmentKey] = []

    def serve(self, prompt: CachePrompt) -> Served:
        in_pool, in_store = self._match(prompt)
        prefix_tokens = (len(in_pool) + len(in_store)) * BLOCK_SIZE_TOKENS
        saved_s = self._price.compute_s(0, prefix_tokens)
        saved_s -= len(in_store) * BLOCK_SIZE_TOKENS * self._price.load_s_per_token
        held = tuple(self.store.has_segment(_key(segment)) for segment in prompt.segments)
        used: dict[SegmentKey, None] = {}
        missing: list[CacheSegment] = []
        segment_tokens = 0
        for segment, is_held in zip(prompt.segments, held, strict=True):
            start, end = max(segment.start, prefix_tokens), min(segment.end, prompt.num_tokens - 1)
            loaded_from = start + self._price.recompute_tokens
            # As in a worker, only what is used is touched: not what the prefix covers.
            if is_held and loaded_from < end and self.store.find_segment(_key(segment)) is not None:
                used[_key(segment)] = None
                segment_tokens += end - start
                saved_s += self._price.segment_s(loaded_from, end)
            elif segment.end > prefix_tokens and segment.start > 0:
                missing.append(segment)
        self._take_in(prompt, in_pool, in_store, used)
        self._keep(missing)
        return Served(prefix_tokens, segment_tokens, saved_s, held)

    def take_losses(self) -> tuple[list[EngineBlockHash], list[SegmentKey]]:
        """What the store evicted since the last call and the device tier has not either."""
        blocks, self._lost_blocks = self._lost_blocks, []
        segments, self._lost_segments = self._lost_segments, []
        return blocks, segments

    def _match(self, prompt: CachePrompt) -> tuple[list[EngineBlockHash], list[EngineBlockHash]]:
        in_pool: list[EngineBlockHash] = []
        in_store: list[EngineBlockHash] = []
        # At least the last token is computed.
        for block in prompt.blocks[: (prompt.num_tokens - 1) // BLOCK_SIZE_TOKENS]:
            if block in self._pool:
                in_pool.append(block)
            elif self.store.has_block(block):
                in_store.append(block)
            else:
                break
        return in_pool, in_store

    def _take_in(
        self,
        prompt: CachePrompt,
        in_pool: list[EngineBlockHash],
        in_store: list[EngineBlockHash],
        used: Iterable[SegmentKey],
    ) -> None:
        self.store.pin_blocks(in_store)
        for key in used:
            self.store.pin_segment(key)
        num_blocks = -(-prompt.num_tokens // BLOCK_SIZE_TOKENS)
        table, evicted = self._pool.allocate(in_pool, num_blocks - len(in_pool))
        if evicted:
            put = self.store.put_blocks(evicted)
            self._note(put.evictions)
        self.store.unpin_blocks(in_store[::-1])
        for key in used:
            self.store.unpin_segment(key)
        held = set(in_pool)
        self._pool.cache(table, [block for block in prompt.blocks if block not in held])
        self._pool.release(table)

    def _keep(self, missing: Iterable[CacheSegment]) -> None:
        for segment in missing:
            put = self.store.put_segment(
                StoredSegment(_key(segment), b"", segment.end - segment.start, Origin.IN_CONTEXT)
            )
            self._note(put.evictions)

    def _note(self, evictions: Evictions) -> None:
        self._lost_blocks += self._pool.absent(evictions.blocks)
        self._lost_segments += evictions.segments


def _key(segment: CacheSegment) -> SegmentKey:
    return SegmentKey(DOMAIN, segment.segment_hash)
