"""See `placement_case` for the round numbers."""

from dataclasses import replace

import numpy as np
import pytest
from support.placement_case import NOW_S, PlacementCase, layout_of, round_card, worker

from nebula_protocol.cost import CostFit
from nebula_protocol.fusion import FULL_FUSION, cacheblend, legolink
from nebula_protocol.ids import Role
from nebula_router.core.coverage import IN_FLIGHT, STORED, UNCONFIRMED
from nebula_router.core.estimator import Estimates, WorkerEstimate, estimate_workers
from nebula_router.core.fleet import Fleet
from nebula_router.core.plan_question import PlannerSettings
from nebula_router.core.queued_work import QueuedWork
from nebula_router.core.worker_profile import WorkerProfile

ONE, TWO = [round_card(1)], [round_card(1), round_card(2)]


def estimate(case: PlacementCase) -> Estimates:
    return estimate_workers(case.question(), NOW_S)


def first(case: PlacementCase) -> WorkerEstimate:
    return estimate(case).column(0)


def work(case: PlacementCase) -> QueuedWork:
    """Of the first worker's engine."""
    estimates = estimate(case)
    return estimates.queued_work(0, estimates.column(0).num_moved)


def test_a_cold_prompt_on_an_idle_worker_takes_a_step() -> None:
    # 10 ms + 1,000 * 0.1 ms
    case = PlacementCase(ONE, layout_of(1000, []))
    assert first(case).completion_s == pytest.approx(0.110)
    assert work(case).step_tokens == 1000


def test_attention_is_paid_by_position() -> None:
    fit = CostFit(step_s=0.010, per_token_s=0.0001, per_pair_s=1e-7)
    case = PlacementCase([round_card(1, step_cost=fit)], layout_of(1000, [(600, 800)]), states={(0, 1): STORED})
    # Computed are tokens 0 to 600 and 800 to 1,000: pairs 600**2 / 2 + (1000**2 - 800**2) / 2 = 360,000.
    assert work(case).attention_pairs == pytest.approx(360_000)
    # 10 ms + 800 * 0.1 ms + 360,000 * 0.1 us
    assert first(case).completion_s == pytest.approx(0.126)


def test_a_measured_factor_scales_compute_but_not_loading() -> None:
    case = PlacementCase(
        [round_card(1, load_s_per_token=1e-5)],
        layout_of(1000, [(500, 900)]),
        states={(0, 1): STORED},
        load={"cost_factor": {1: 2.0}},
    )
    # 2 * (10 ms + 600 * 0.1 ms) + 400 * 0.01 ms
    assert first(case).completion_s == pytest.approx(0.144)


def test_a_prefix_hit_is_not_computed() -> None:
    result = first(PlacementCase(ONE, layout_of(1000, []), prefix={1: 800}, prefix_device={1: 800}))
    assert result.completion_s == pytest.approx(0.030)


def test_a_prefix_that_left_the_device_is_loaded() -> None:
    case = PlacementCase(
        [round_card(1, load_s_per_token=1e-5)], layout_of(1000, []), prefix={1: 800}, prefix_device={1: 300}
    )
    # 500 tokens at 0.01 ms come on top of 10 ms + 200 * 0.1 ms.
    result = first(case)
    assert result.completion_s == pytest.approx(0.035)
    assert work(case).load_s == pytest.approx(0.005)


def test_at_least_the_last_block_is_computed_where_all_is_cached() -> None:
    case = PlacementCase(ONE, layout_of(1024, []), prefix={1: 1024})
    # (1024 - 1) // 16 * 16 = 1008
    assert work(case).step_tokens == 16


def test_at_least_the_last_token_is_computed_where_a_segment_ends_the_prompt() -> None:
    case = PlacementCase(ONE, layout_of(1000, [(100, 1000)]), prefix={1: 96}, states={(0, 1): STORED})
    # 4 tokens between prefix and segment, and the last one.
    assert work(case).step_tokens == 5


@pytest.mark.parametrize("state", [STORED, UNCONFIRMED])
def test_a_segment_that_lies_there_is_loaded_instead_of_computed(state: int) -> None:
    case = PlacementCase(ONE, layout_of(1000, [(500, 900)]), states={(0, 1): state})
    result = first(case)
    assert work(case).step_tokens == 600
    assert result.arrive_in_s == 0.0
    assert result.completion_s == pytest.approx(0.070)


def test_the_first_tokens_of_a_reused_segment_are_computed_again() -> None:
    case = PlacementCase([round_card(1, fusion=legolink(16))], layout_of(1000, [(500, 900)]), states={(0, 1): STORED})
    assert work(case).step_tokens == 616


def test_a_share_of_a_reused_segment_may_be_computed_again() -> None:
    cards = [round_card(1, fusion=cacheblend(0.15), num_layers=40)]
    case = PlacementCase(cards, layout_of(1000, [(500, 900)]), states={(0, 1): STORED})
    # 600 + 15 % of 400 + the probe of all 400 through 2 of 40 layers
    assert work(case).step_tokens == 680


def test_a_request_may_ask_for_a_fusion_of_its_own() -> None:
    cards = [round_card(1, fusion=legolink(16)), round_card(2, fusion=legolink(16), num_layers=20, pic=False)]
    fleet = Fleet.of([WorkerProfile(worker(card.worker_id), card) for card in cards]).with_fusion(cacheblend(0.15))
    assert fleet.recompute_tokens.tolist() == [0, 0]
    # 1 - 0.15 - 2 / 40; the second does not reuse segments.
    assert fleet.reused_ratio.tolist() == pytest.approx([0.8, 0.0])


def test_a_request_that_wants_all_computed_again_is_spared_nothing() -> None:
    fleet = Fleet.of([WorkerProfile(worker(1), round_card(1))]).with_fusion(FULL_FUSION)
    assert fleet.reused_ratio.tolist() == [0.0]


def test_the_prefix_is_preferred_on_the_tokens_of_a_segment() -> None:
    case = PlacementCase(
        [round_card(1, fusion=legolink(16))],
        layout_of(1000, [(500, 900)]),
        prefix={1: 640},
        states={(0, 1): STORED},
    )
    # 640 by prefix; of the segment's other 260 the first 16 are computed again; then 100 behind it.
    assert work(case).step_tokens == 116


def test_a_segment_no_longer_than_what_is_recomputed_is_not_reused() -> None:
    case = PlacementCase([round_card(1, fusion=legolink(64))], layout_of(1000, [(500, 564)]), states={(0, 1): STORED})
    assert work(case).step_tokens == 1000


def test_kv_that_loads_slower_than_it_computes_is_not_reused() -> None:
    case = PlacementCase(
        [round_card(1, load_s_per_token=0.001)], layout_of(1000, [(500, 900)]), states={(0, 1): STORED}
    )
    assert work(case).step_tokens == 1000


def test_a_worker_without_position_independent_caching_reuses_no_segment() -> None:
    case = PlacementCase([round_card(1, pic=False)], layout_of(1000, [(500, 900)]), states={(0, 1): STORED})
    assert work(case).step_tokens == 1000


def test_a_copied_segment_arrives_when_its_bytes_are_through_the_link() -> None:
    case = PlacementCase(TWO, layout_of(1000, [(500, 900)]), states={(0, 2): STORED})
    result = first(case)
    # 1 ms + 400 * 0.01 ms = 5 ms, then 10 ms + 600 * 0.1 ms.
    assert result.arrive_in_s == pytest.approx(0.005)
    assert result.completion_s == pytest.approx(0.075)


def test_copies_of_one_request_share_the_targets_link() -> None:
    case = PlacementCase(
        [round_card(worker_id) for worker_id in (1, 2, 3)],
        layout_of(1000, [(100, 500), (500, 900)]),
        states={(0, 2): STORED, (1, 3): STORED},
    )
    # From two sources at once, but 800 tokens go through one link: 1 ms + 800 * 0.01 ms.
    assert first(case).arrive_in_s == pytest.approx(0.009)


def test_a_copy_is_late_where_either_end_of_the_link_is_taken() -> None:
    spans = layout_of(1000, [(500, 900)])
    source = PlacementCase(TWO, spans, states={(0, 2): STORED}, load={"link_out_busy_s": {2: 0.007}})
    target = PlacementCase(TWO, spans, states={(0, 2): STORED}, load={"link_in_busy_s": {1: 0.006}})
    assert first(source).arrive_in_s == pytest.approx(0.012)
    assert first(target).arrive_in_s == pytest.approx(0.011)


def test_transfers_hide_behind_a_busy_engine() -> None:
    case = PlacementCase(TWO, layout_of(1000, [(500, 900)]), states={(0, 2): STORED}, load={"free_in_s": {1: 0.050}})
    # 50 ms, of which the copy takes 5, then 10 ms + 600 * 0.1 ms.
    assert first(case).completion_s == pytest.approx(0.120)


def test_a_copy_that_would_come_too_late_is_not_waited_for() -> None:
    # A token takes 1 ms on the link and 0.1 ms to compute.
    slow = [round_card(1, kv_bytes_per_token=100_000), round_card(2, kv_bytes_per_token=100_000)]
    case = PlacementCase(slow, layout_of(1000, [(500, 900)]), states={(0, 2): STORED})
    result = first(case)
    assert (result.num_moved, result.arrive_in_s) == (0, 0.0)
    assert result.completion_s == pytest.approx(0.110)


def test_only_the_copies_that_arrive_in_time_are_made() -> None:
    case = PlacementCase(
        TWO,
        layout_of(1000, [(100, 500), (500, 900)]),
        states={(0, 2): STORED, (1, 2): IN_FLIGHT},
        ready_in_s={(1, 2): 0.500},
    )
    # The first is there after 5 ms; the second would save 40 ms and cost half a second.
    result = first(case)
    assert result.num_moved == 1
    assert result.completion_s == pytest.approx(0.005 + 0.010 + 0.060)


def test_what_is_being_computed_elsewhere_arrives_after_it_is_ready() -> None:
    case = PlacementCase(TWO, layout_of(1000, [(500, 900)]), states={(0, 2): IN_FLIGHT}, ready_in_s={(0, 2): 0.020})
    # 20 ms + 400 * 0.01 ms + 1 ms
    assert first(case).arrive_in_s == pytest.approx(0.025)


def test_what_is_being_computed_here_needs_no_link() -> None:
    case = PlacementCase(TWO, layout_of(1000, [(500, 900)]), states={(0, 1): IN_FLIGHT}, ready_in_s={(0, 1): 0.020})
    assert first(case).arrive_in_s == pytest.approx(0.020)


def test_the_sooner_of_own_computation_and_copy_counts() -> None:
    case = PlacementCase(
        TWO,
        layout_of(1000, [(500, 900)]),
        states={(0, 1): IN_FLIGHT, (0, 2): STORED},
        ready_in_s={(0, 1): 0.020},
    )
    assert first(case).arrive_in_s == pytest.approx(0.005)


def test_what_is_overdue_by_some_time_is_expected_to_take_as_long_again() -> None:
    case = PlacementCase(TWO, layout_of(1000, [(500, 900)]), states={(0, 1): IN_FLIGHT}, ready_in_s={(0, 1): -0.015})
    assert first(case).arrive_in_s == pytest.approx(0.015)


def test_a_prefix_that_is_being_computed_is_waited_for() -> None:
    case = PlacementCase(
        ONE,
        layout_of(1000, [(16, 800)]),
        prefix={1: 800},
        states={(0, 1): IN_FLIGHT},
        ready_in_s={(0, 1): 0.050},
    )
    result = first(case)
    assert result.arrive_in_s == pytest.approx(0.050)
    # 50 ms, then 10 ms + 200 * 0.1 ms
    assert result.completion_s == pytest.approx(0.080)


def test_a_prefix_that_takes_longer_than_computing_it_again_is_not_waited_for() -> None:
    case = PlacementCase(
        ONE,
        layout_of(1000, [(16, 700), (705, 800)]),
        prefix={1: 800},
        states={(0, 1): STORED, (1, 1): IN_FLIGHT},
        ready_in_s={(1, 1): 0.050},
    )
    # Blocks up to 704 are there. The other 96 tokens take 9.6 ms, which is less than 50.
    result = first(case)
    assert result.arrive_in_s == 0.0
    assert work(case).step_tokens == 1000 - 704
    # At a price of 5 they take 57.6 ms of everybody's time.
    assert first(replace(case, work_price=5.0)).arrive_in_s == pytest.approx(0.050)


def test_a_prefix_that_is_there_by_the_requests_turn_is_not_computed_again() -> None:
    case = PlacementCase(
        ONE,
        layout_of(1000, [(704, 800)]),
        prefix={1: 800},
        states={(0, 1): IN_FLIGHT},
        ready_in_s={(0, 1): 0.050},
        load={"free_in_s": {1: 0.060}},
    )
    # 60 ms, then 10 ms + 200 * 0.1 ms
    assert first(case).completion_s == pytest.approx(0.090)


def test_tokens_in_front_share_the_floor_of_the_step() -> None:
    limited = [round_card(1, max_step_tokens=1000)]
    case = PlacementCase(limited, layout_of(1200, []), load={"free_in_s": {1: 0.030}, "queued_tokens": {1: 300.0}})
    # 300 in front and 1,200 of this: 2 steps. 30 ms + 2 * 10 ms + 120 ms.
    assert first(case).completion_s == pytest.approx(0.170)


MISSED = {
    "free_in_s": {1: 0.034},
    "queued_tokens": {1: 300.0},
    "turn_in_s": {1: 0.004},
    "drained_in_s": {1: 0.044},
    "co_batched": {1: 1.0},
}


def test_a_request_that_is_runnable_too_late_for_a_step_starts_behind_it() -> None:
    # A step ends in 4 ms, and 300 tokens wait for the next. The copy comes after 5 ms, and misses that one; it ends
    # after 4 + 10 + 30 ms. Then 10 ms + 600 * 0.1 ms. Nobody else waits for this request's work.
    case = PlacementCase(TWO, layout_of(1000, [(100, 500)]), states={(0, 2): STORED}, load=MISSED, work_price=1.0)
    result = first(case)
    assert result.completion_s == pytest.approx(0.114)
    assert result.score == pytest.approx(0.114 + 0.060)


def test_a_request_that_is_runnable_in_time_shares_the_step() -> None:
    # 34 ms, then 10 ms + 600 * 0.1 ms: the floor is paid once for both, and the other one waits for these 60 ms.
    case = PlacementCase(ONE, layout_of(1000, [(100, 500)]), states={(0, 1): STORED}, load=MISSED, work_price=1.0)
    result = first(case)
    assert result.completion_s == pytest.approx(0.104)
    assert result.score == pytest.approx(0.104 + 2 * 0.060)


def test_those_who_waited_longer_for_segments_come_first() -> None:
    load = {"late_from_s": {1: 0.003}, "late_free_in_s": {1: 0.043}}
    waits = PlacementCase(TWO, layout_of(1000, [(100, 900)]), states={(0, 2): STORED}, load=load)
    runs = PlacementCase(TWO, layout_of(1000, [(100, 900)]), states={(0, 1): STORED}, load=load)
    # The copy comes after 9 ms, when the others hold the engine until 43 ms.
    assert first(waits).completion_s == pytest.approx(0.043 + 0.010 + 0.020)
    assert first(runs).completion_s == pytest.approx(0.030)


def test_the_score_adds_what_others_pay() -> None:
    case = PlacementCase(
        ONE, layout_of(1000, []), work_price=0.5, load={"co_batched": {1: 2.0}, "queued_tokens": {1: 100.0}}
    )
    # 110 ms for itself; two others in its step wait for its 100 ms, and those to come for half of that.
    result = first(case)
    assert result.completion_s == pytest.approx(0.110)
    assert result.score == pytest.approx(0.110 + 2.5 * 0.100)


def test_who_cannot_take_the_prompt_has_no_finite_score() -> None:
    cards = [
        round_card(1, context_tokens=999),
        round_card(2, role=Role.DECODE),
        round_card(3),
        round_card(4, context_tokens=1000),
    ]
    case = PlacementCase(cards, layout_of(1000, []), excluded=frozenset({3}))
    assert np.isfinite(estimate(case).score).tolist() == [False, False, False, True]


def test_an_excluded_worker_is_no_source() -> None:
    case = PlacementCase(TWO, layout_of(1000, [(500, 900)]), states={(0, 2): STORED}, excluded=frozenset({2}))
    assert work(case).step_tokens == 1000


@pytest.mark.parametrize(
    ("settings", "state"),
    [
        (PlannerSettings(remote_reuse=False), STORED),
        (PlannerSettings(join=False), IN_FLIGHT),
        (PlannerSettings(pic=False), STORED),
    ],
)
def test_what_is_switched_off_is_not_used(settings: PlannerSettings, state: int) -> None:
    layout, held = layout_of(1000, [(500, 900)]), {(0, 2): state}
    on = PlacementCase(TWO, layout, states=held, ready_in_s={(0, 2): 0.0})
    off = PlacementCase(TWO, layout, states=held, ready_in_s={(0, 2): 0.0}, settings=settings)
    assert work(on).step_tokens == 600
    assert work(off).step_tokens == 1000


def test_own_computations_are_joined_without_remote_reuse() -> None:
    case = PlacementCase(
        TWO,
        layout_of(1000, [(500, 900)]),
        settings=PlannerSettings(remote_reuse=False),
        states={(0, 1): IN_FLIGHT},
        ready_in_s={(0, 1): 0.020},
    )
    assert first(case).arrive_in_s == pytest.approx(0.020)
