"""The router's split controller on one cache, told of losses and prompts as the router is."""

from nebula_bench.split.cache import Cache, Served
from nebula_bench.split.cache_prompt import BLOCK_SIZE_TOKENS, DOMAIN, CachePrompt
from nebula_protocol.ids import PrefixKey, RemovalReason
from nebula_router.core.capacity import SplitController
from nebula_router.core.evidence import LostBlocks, LostSegment
from nebula_router.core.prompt_use import CHUNK_BLOCKS, PromptUse, SegmentKey, SegmentUse
from nebula_router.core.reuse_price import ReusePrice
from nebula_router.core.store_room import StoreRoom

_CHUNK_TOKENS = CHUNK_BLOCKS * BLOCK_SIZE_TOKENS
_MAX_ENTRIES = 1_000_000


class SteeredCache:
    """Serves like the cache that it steers."""

    def __init__(
        self, cache: Cache, *, room: StoreRoom, price: ReusePrice, prefix_ratio: float, window_requests: int
    ) -> None:
        self.controller = SplitController(
            prefix_ratio=prefix_ratio, window_requests=window_requests, max_entries=_MAX_ENTRIES
        )
        self.controller.set_fleet(room, price)
        self._cache = cache
        self._depths: dict[int, int] = {}
        self._segment_tokens: dict[SegmentKey, int] = {}
        cache.store.set_split(prefix_ratio)

    def serve(self, prompt: CachePrompt) -> Served:
        served = self._cache.serve(prompt)
        self._remember(prompt)
        self._report_losses()
        before = self.controller.prefix_ratio
        self.controller.record_use(_use_of(prompt, served))
        if self.controller.prefix_ratio != before:
            self._cache.store.set_split(self.controller.prefix_ratio)
        return served

    def _remember(self, prompt: CachePrompt) -> None:
        self._depths.update((block, depth) for depth, block in enumerate(prompt.blocks))
        for segment in prompt.segments:
            self._segment_tokens[SegmentKey(DOMAIN, segment.segment_hash)] = segment.end - segment.start

    def _report_losses(self) -> None:
        blocks, segments = self._cache.take_losses()
        if blocks:
            keys = tuple(PrefixKey(block) for block in blocks)
            depths = tuple(self._depths[block] for block in blocks)
            self.controller.record_lost(LostBlocks(keys, depths, BLOCK_SIZE_TOKENS, RemovalReason.CAPACITY))
        for domain_id, segment_hash in segments:
            num_tokens = self._segment_tokens[SegmentKey(domain_id, segment_hash)]
            self.controller.record_lost(LostSegment(domain_id, segment_hash, num_tokens, RemovalReason.CAPACITY))


def _use_of(prompt: CachePrompt, served: Served) -> PromptUse:
    return PromptUse(
        num_tokens=prompt.num_tokens,
        chunk_tokens=_CHUNK_TOKENS,
        chunks=tuple(PrefixKey(block) for block in prompt.blocks[CHUNK_BLOCKS - 1 :: CHUNK_BLOCKS]),
        num_held_chunks=served.prefix_tokens // _CHUNK_TOKENS,
        prefix_hit_tokens=served.prefix_tokens,
        segments=tuple(
            SegmentUse(SegmentKey(DOMAIN, segment.segment_hash), segment.start, segment.end, is_held=is_held)
            for segment, is_held in zip(prompt.segments, served.held_segments, strict=True)
        ),
    )
