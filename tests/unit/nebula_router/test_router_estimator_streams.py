"""Copies that come layer by layer, and those who wait for theirs. See `placement_case` for the round numbers."""

import pytest
from support.placement_case import NOW_S, PlacementCase, layout_of, round_card

from nebula_router.core.coverage import IN_FLIGHT, STORED
from nebula_router.core.estimator import WorkerEstimate, estimate_workers


def first(case: PlacementCase) -> WorkerEstimate:
    return estimate_workers(case.question(), NOW_S).column(0)


def test_a_step_meets_copies_that_come_layer_by_layer() -> None:
    case = PlacementCase([round_card(1, stream_pieces=4), round_card(2)], layout_of(1000, [(100, 900)]))
    case.states = {(0, 2): STORED}
    result = first(case)
    # 800 tokens are here after 1 + 8 ms. The step's 10 + 200 * 0.1 ms begin when the first layer can be there, after 1.
    assert result.num_moved == 1
    assert (result.arrive_in_s, result.runnable_in_s) == pytest.approx((0.009, 0.001))
    assert result.completion_s == pytest.approx(0.031)


def test_a_step_begins_so_that_its_last_layer_meets_the_last_piece() -> None:
    case = PlacementCase([round_card(n, stream_pieces=4) for n in (1, 2)], layout_of(1000, [(100, 900)]))
    case.states, case.ready_in_s = {(0, 2): IN_FLIGHT}, {(0, 2): 0.05}
    result = first(case)
    # The last layer leaves when it is computed and takes a quarter of 8 ms, and 1 ms: 53. The step takes 30 ms, and
    # three quarters of it are over by then.
    assert result.arrive_in_s == pytest.approx(0.053)
    assert result.runnable_in_s == pytest.approx(0.053 - 0.75 * 0.030)


def test_what_the_worker_computes_itself_is_waited_for_to_its_end() -> None:
    case = PlacementCase([round_card(1, stream_pieces=4)], layout_of(1000, [(100, 900)]))
    case.states, case.ready_in_s = {(0, 1): IN_FLIGHT}, {(0, 1): 0.05}
    assert first(case).runnable_in_s == pytest.approx(0.05)


def test_the_score_adds_what_those_wait_whose_copies_come_meanwhile() -> None:
    case = PlacementCase([round_card(1)], layout_of(1000, []), load={"late_from_s": {1: 0.08}, "num_late": {1: 2}})
    # Done after 110 ms: two requests wait 30 ms.
    assert first(case).score == pytest.approx(0.110 + 2 * 0.030)
    after = PlacementCase([round_card(1)], layout_of(1000, []), load={"late_from_s": {1: 0.2}, "num_late": {1: 2}})
    assert first(after).score == pytest.approx(0.110)
