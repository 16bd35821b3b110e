"""The split controller with round numbers: a token takes 1 ms, a step of the split is 100 tokens, loading is free."""

from collections.abc import Sequence

from nebula_protocol.ids import DomainId, PrefixKey, RemovalReason, SegmentHash
from nebula_router.core.capacity import SplitController
from nebula_router.core.evidence import LostBlocks, LostSegment
from nebula_router.core.prompt_use import CHUNK_BLOCKS, PromptUse, SegmentKey, SegmentUse
from nebula_router.core.reuse_price import ReusePrice
from nebula_router.core.store_room import StoreRoom

DOMAIN = DomainId("d")
BLOCK = 16
CHUNK = CHUNK_BLOCKS * BLOCK
STORE = 12_800
PRICE = ReusePrice(per_token_s=0.001, per_pair_s=0.0, load_s_per_token=0.0, recompute_tokens=0, reused_ratio=1.0)


def controller(
    *, prefix_ratio: float = 0.5, window_requests: int = 1, store_tokens: int = STORE, device_tokens: int = 0
) -> SplitController:
    split = SplitController(prefix_ratio=prefix_ratio, window_requests=window_requests, max_entries=10_000)
    split.set_fleet(StoreRoom(store_tokens, device_tokens), PRICE)
    return split


def segment_hash(number: int) -> SegmentHash:
    return SegmentHash(number.to_bytes(16, "big"))


def segment_key(number: int) -> SegmentKey:
    return SegmentKey(DOMAIN, segment_hash(number))


def chat(*chunks: int, hit_chunks: int = 0, held_chunks: int = 0) -> PromptUse:
    """Whole chunks of blocks and one more token, no segment."""
    return PromptUse(
        num_tokens=CHUNK * len(chunks) + 1,
        chunk_tokens=CHUNK,
        chunks=tuple(map(PrefixKey, chunks)),
        num_held_chunks=max(held_chunks, hit_chunks),
        prefix_hit_tokens=CHUNK * hit_chunks,
        segments=(),
    )


def lookup(*segments: int, num_tokens: int = CHUNK, held: Sequence[int] = (), barred: Sequence[int] = ()) -> PromptUse:
    """One new token, segments of this length each, and one more token; too few blocks for a chunk that returns."""
    return PromptUse(
        num_tokens=num_tokens * len(segments) + 2,
        chunk_tokens=CHUNK,
        chunks=(),
        num_held_chunks=0,
        prefix_hit_tokens=0,
        segments=tuple(
            SegmentUse(
                segment_key(number),
                1 + place * num_tokens,
                1 + (place + 1) * num_tokens,
                is_held=number in held or number in barred,
                is_barred=number in barred,
            )
            for place, number in enumerate(segments)
        ),
    )


def lost_chunks(*chunks: int, reason: RemovalReason = RemovalReason.CAPACITY) -> LostBlocks:
    """Their last blocks, which stand for them."""
    return LostBlocks(tuple(map(PrefixKey, chunks)), (CHUNK_BLOCKS - 1,) * len(chunks), BLOCK, reason)


def lost_segment(number: int, num_tokens: int = CHUNK, reason: RemovalReason = RemovalReason.CAPACITY) -> LostSegment:
    return LostSegment(DOMAIN, segment_hash(number), num_tokens, reason)
