"""What each way to divide the store saves, over workloads and capacities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from nebula_bench.split.cache import Cache
from nebula_bench.split.cache_prompt import BLOCK_SIZE_TOKENS, CachePrompt
from nebula_bench.split.one_lru import OneLruStore
from nebula_bench.split.outcome import Outcome
from nebula_bench.split.settings import SplitSettings
from nebula_bench.split.steering import SteeredCache
from nebula_bench.split.store_port import Store
from nebula_router.core.reuse_price import ReusePrice
from nebula_router.core.store_room import StoreRoom
from pic_worker.core.store import TwoClassStore

# Llama-3.1-8B on an H100 under the calibration's correction, its KV loaded at 55 GB/s, LegoLink with k = 16.
PRICE = ReusePrice(
    per_token_s=23.5e-6, per_pair_s=9.0e-10, load_s_per_token=2.4e-6, recompute_tokens=16, reused_ratio=1.0
)


class Division(StrEnum):
    ONE_LRU = "one_lru"
    HALVES = "halves"
    BEST_STATIC = "best_static"
    CONTROLLER = "controller"


@dataclass(slots=True)
class _Sums:
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    segment_tokens: int = 0
    saved_s: float = 0.0
    prefill_s: float = 0.0


class SplitRow(msgspec.Struct, frozen=True):
    workload: str
    store_tokens: int
    outcomes: dict[Division, Outcome]


def compare_divisions(
    workload: str,
    prompts: Sequence[CachePrompt],
    settings: SplitSettings,
    store_tokens: int,
    advance: Callable[[], object] = lambda: None,
) -> SplitRow:
    """All divisions of stores of one size. `advance` is called after each of `num_runs`."""
    room = StoreRoom(
        store_tokens=store_tokens * settings.num_workers, device_tokens=settings.device_tokens * settings.num_workers
    )
    static: dict[float, Outcome] = {}
    for ratio in sorted({*settings.ratios, 0.5}):
        static[ratio] = run_static(prompts, two_classes(room, ratio), room, ratio)
        advance()
    one_lru = run_static(prompts, _one_lru(room), room, None)
    advance()
    controller = run_controller(
        prompts, room, start_ratio=settings.start_ratio, window_requests=settings.window_requests
    )
    advance()
    return SplitRow(
        workload=workload,
        store_tokens=store_tokens,
        outcomes={
            Division.ONE_LRU: one_lru,
            Division.HALVES: static[0.5],
            Division.BEST_STATIC: max(static.values(), key=lambda outcome: outcome.saved_ratio),
            Division.CONTROLLER: controller,
        },
    )


def num_runs(settings: SplitSettings) -> int:
    """Of one `compare_divisions`."""
    return len({*settings.ratios, 0.5}) + 2


def two_classes(room: StoreRoom, prefix_ratio: float) -> TwoClassStore:
    return TwoClassStore(
        capacity_tokens=round(room.store_tokens), prefix_ratio=prefix_ratio, block_size_tokens=BLOCK_SIZE_TOKENS
    )


def _one_lru(room: StoreRoom) -> OneLruStore:
    return OneLruStore(capacity_tokens=round(room.store_tokens), block_size_tokens=BLOCK_SIZE_TOKENS)


def run_static(prompts: Sequence[CachePrompt], store: Store, room: StoreRoom, prefix_ratio: float | None) -> Outcome:
    cache = Cache(store, device_tokens=round(room.device_tokens), price=PRICE)
    return _run(prompts, cache, lambda: prefix_ratio)


def run_controller(
    prompts: Sequence[CachePrompt], room: StoreRoom, *, start_ratio: float, window_requests: int
) -> Outcome:
    cache = Cache(two_classes(room, start_ratio), device_tokens=round(room.device_tokens), price=PRICE)
    steered = SteeredCache(cache, room=room, price=PRICE, prefix_ratio=start_ratio, window_requests=window_requests)
    return _run(prompts, steered, lambda: steered.controller.prefix_ratio)


def _run(
    prompts: Sequence[CachePrompt], cache: Cache | SteeredCache, final_ratio: Callable[[], float | None]
) -> Outcome:
    sums = _Sums()
    for prompt in prompts:
        served = cache.serve(prompt)
        sums.prompt_tokens += prompt.num_tokens
        sums.prefix_tokens += served.prefix_tokens
        sums.segment_tokens += served.segment_tokens
        sums.saved_s += served.saved_s
        sums.prefill_s += PRICE.compute_s(0, prompt.num_tokens)
    return Outcome(
        prefix_ratio=final_ratio(),
        prefix_hit_ratio=sums.prefix_tokens / sums.prompt_tokens,
        segment_hit_ratio=sums.segment_tokens / sums.prompt_tokens,
        saved_ratio=sums.saved_s / sums.prefill_s,
    )
