"""The control loop over whole workloads: what the literature on dividing caches asks of it.

Each case runs the router's controller on the worker's own store and device pool, prompt by prompt.
"""

from collections.abc import Iterable, Iterator, Sequence

import pytest
from support.split_workloads import PromptSource

from nebula_bench.split.cache import Cache
from nebula_bench.split.cache_prompt import CachePrompt
from nebula_bench.split.comparison import PRICE, two_classes
from nebula_bench.split.steering import SteeredCache
from nebula_router.core.store_room import StoreRoom

DEVICE_TOKENS = 2_048
RATIOS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def room_of(store_tokens: int) -> StoreRoom:
    return StoreRoom(store_tokens, DEVICE_TOKENS)


def cache_at(room: StoreRoom, prefix_ratio: float) -> Cache:
    return Cache(two_classes(room, prefix_ratio), device_tokens=DEVICE_TOKENS, price=PRICE)


def steered(room: StoreRoom, prefix_ratio: float, window_requests: int = 32) -> SteeredCache:
    cache = cache_at(room, prefix_ratio)
    return SteeredCache(cache, room=room, price=PRICE, prefix_ratio=prefix_ratio, window_requests=window_requests)


def saved_ratio(cache: Cache | SteeredCache, prompts: Sequence[CachePrompt], first_counted: int) -> float:
    """Share of prefill time saved on the prompts from `first_counted` on."""
    served = [cache.serve(prompt) for prompt in prompts]
    prefill_s = sum(PRICE.compute_s(0, prompt.num_tokens) for prompt in prompts[first_counted:])
    return sum(one.saved_s for one in served[first_counted:]) / prefill_s


def best_static(room: StoreRoom, prompts: Sequence[CachePrompt], first_counted: int) -> float:
    return max(saved_ratio(cache_at(room, ratio), prompts, first_counted) for ratio in RATIOS)


def ratios_of(cache: SteeredCache, prompts: Iterable[CachePrompt]) -> Iterator[float]:
    for prompt in prompts:
        cache.serve(prompt)
        yield cache.controller.prefix_ratio


@pytest.mark.parametrize(("chat_share", "store_tokens"), [(0.2, 60_000), (0.5, 60_000), (0.8, 20_000)])
def test_a_stationary_mix_comes_within_a_point_of_the_best_static_split(chat_share: float, store_tokens: int) -> None:
    prompts = list(PromptSource(seed=1).mix(1_800, chat_share))
    room = room_of(store_tokens)
    static = [saved_ratio(cache_at(room, ratio), prompts, 1_000) for ratio in RATIOS]
    for start_ratio in (0.1, 0.9):
        assert saved_ratio(steered(room, start_ratio), prompts, 1_000) > max(static) - 0.01
    # The mixes are such that a wrong split matters.
    assert min(static) < max(static) - 0.05


def test_after_a_change_of_phase_the_split_converges_anew() -> None:
    source = PromptSource(seed=2)
    prompts = [*source.mix(800, 0.1), *source.mix(1_400, 0.9, shift=1_000)]
    room, cache = room_of(40_000), steered(room_of(40_000), 0.5)
    ratios = list(ratios_of(cache, prompts))
    assert ratios[799] < 0.2
    assert ratios[-1] > 0.6
    # In the end it saves nearly what the split does that is best there.
    assert saved_ratio(steered(room, 0.5), prompts, 1_600) > best_static(room, prompts, 1_600) - 0.01


def test_a_scan_does_not_make_the_split_swing() -> None:
    source = PromptSource(seed=3)
    room = room_of(60_000)
    cache = steered(room, 0.3)
    before = list(ratios_of(cache, source.mix(1_200, 0.5)))
    # 100 prompts of 1,024 tokens that never return: more than the whole store.
    during = list(ratios_of(cache, [source.scan() for _ in range(100)]))
    after = list(ratios_of(cache, source.mix(400, 0.5)))
    usual = (min(before[600:]), max(before[600:]))
    assert max(during + after) - min(during + after) < 0.15
    assert min(during + after) > usual[0] - 0.1
    assert max(during + after) < usual[1] + 0.1


def test_windows_of_8_to_64_requests_save_the_same() -> None:
    prompts = list(PromptSource(seed=4).mix(1_200, 0.4))
    room = room_of(60_000)
    saved = [saved_ratio(steered(room, 0.5, window), prompts, 0) for window in (8, 16, 32, 64)]
    assert max(saved) - min(saved) < 0.005
    # Far less than what hangs on the split.
    assert min(saved) > saved_ratio(cache_at(room, 0.9), prompts, 0) + 0.05


def test_where_the_store_holds_everything_the_controller_costs_nothing() -> None:
    prompts = list(PromptSource(seed=5, num_chats=20, num_passages=40).mix(400, 0.5))
    room = room_of(2_000_000)
    assert saved_ratio(steered(room, 0.3), prompts, 0) == saved_ratio(cache_at(room, 0.3), prompts, 0)


def test_a_cliff_is_seen_before_the_split_falls_over_it() -> None:
    """Ten chats in turn need all their room, or an LRU keeps none of them; lookups could always use a little more."""
    source = PromptSource(seed=6, num_chats=1, num_passages=4_000, skew=0.3)
    prompts = [prompt for turn in range(160) for prompt in (source.chat(shift=turn % 10), source.lookup())]
    # Ten chats of 64 blocks and a new one, 10,400 tokens, and between them ten lookups' blocks, as much again.
    room = room_of(60_000)
    cache = steered(room, 0.6)
    ratios = list(ratios_of(cache, prompts))
    # 20,800 tokens less the device tier are 0.31 of the store.
    assert min(ratios[-200:]) > 0.31
    assert saved_ratio(steered(room, 0.6), prompts, 100) > best_static(room, prompts, 100) - 0.01
