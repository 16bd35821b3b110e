"""The fleet's room for KV, and what reuse is worth in it."""

import pytest
from support.placement_case import round_card

from nebula_protocol.cost import CostFit
from nebula_protocol.fusion import Fusion, FusionMethod
from nebula_protocol.ids import Role
from nebula_router.core.reuse_price import ReusePrice
from nebula_router.core.store_room import StoreRoom
from nebula_router.core.worker_profile import WorkerProfile, profiles_of


def profiles(*changes: dict[str, object]) -> list[WorkerProfile]:
    """One worker for each, on round numbers: 200,000 tokens of store and 100,000 of device tier."""
    return [
        profile for number, change in enumerate(changes) for profile in profiles_of(round_card(number + 1, **change))
    ]


def test_the_room_is_that_of_all_schedulers_of_prefill_workers() -> None:
    room = StoreRoom.of(profiles({}, {"dp_size": 2}, {"role": Role.DECODE}))
    # One, two ranks of the second, and nothing of the decode worker.
    assert room == StoreRoom(store_tokens=600_000.0, device_tokens=300_000.0)


def test_without_workers_there_is_no_room_and_no_price() -> None:
    assert StoreRoom.of([]) == StoreRoom(0.0, 0.0)
    assert ReusePrice.of([]) is None
    assert ReusePrice.of(profiles({"role": Role.DECODE})) is None


def test_each_class_has_its_share_and_what_the_other_leaves_of_its_own() -> None:
    room = StoreRoom(store_tokens=1_000.0, device_tokens=100.0)
    # Blocks: 100 on the device tier, 300 of their own, and of the segments' 700 what they do not want.
    assert room.prefix_tokens(0.3, wanted_by_segments=5_000.0) == pytest.approx(400.0)
    assert room.prefix_tokens(0.3, wanted_by_segments=500.0) == pytest.approx(600.0)
    # Segments: 700 of their own, and of the blocks' 300 what the device tier does not leave them to want.
    assert room.segment_tokens(0.3, wanted_by_prefix=5_000.0) == pytest.approx(700.0)
    assert room.segment_tokens(0.3, wanted_by_prefix=250.0) == pytest.approx(850.0)
    assert room.segment_tokens(0.3, wanted_by_prefix=50.0) == pytest.approx(1_000.0)


def test_the_price_is_that_of_the_mean_worker() -> None:
    price = ReusePrice.of(
        profiles(
            {
                "step_cost": CostFit(step_s=0.0, per_token_s=0.001, per_pair_s=1e-6),
                "load_s_per_token": 0.0001,
                "fusion": Fusion(FusionMethod.CACHEBLEND, leading_tokens=16, ratio=0.2),
                "num_layers": 20,
            },
            {
                "step_cost": CostFit(step_s=0.0, per_token_s=0.003, per_pair_s=3e-6),
                "load_s_per_token": 0.0003,
                "pic": False,
            },
        )
    )
    assert price is not None
    assert price.per_token_s == pytest.approx(0.002)
    assert price.per_pair_s == pytest.approx(2e-6)
    assert price.load_s_per_token == pytest.approx(0.0002)
    assert price.recompute_tokens == 8
    # The first spares 1 - 0.2 of a segment's tokens less the probe, 2 of 20 layers; the second does not reuse segments.
    assert price.reused_ratio == pytest.approx(0.35)


def test_tokens_far_into_a_prompt_take_longer_for_their_attention() -> None:
    price = ReusePrice(per_token_s=0.001, per_pair_s=1e-6, load_s_per_token=0.0, recompute_tokens=0, reused_ratio=1.0)
    # 100 tokens: 0.1 s, and 100 * 50 pairs, or 100 * 1,050: 0.005 s, or 0.105 s.
    assert price.compute_s(0, 100) == pytest.approx(0.105)
    assert price.compute_s(1_000, 1_100) == pytest.approx(0.205)
