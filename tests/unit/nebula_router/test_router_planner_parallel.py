"""When helpers compute missing segments. See `placement_case` for the round numbers."""

from dataclasses import replace

import pytest
from support.placement_case import NOW_S, PlacementCase, layout_of, round_card, worker

from nebula_protocol.cost import LinkFit
from nebula_protocol.layout import Segment
from nebula_protocol.plan import Source
from nebula_router.core.coverage import STORED
from nebula_router.core.parallel_prefill import HelperCost, MissingSegment, Share, longest_first, share_out, spread
from nebula_router.core.plan_answer import PlanAnswer
from nebula_router.core.plan_question import PlannerSettings
from nebula_router.core.planner import plan_prefill

FIVE = [round_card(worker_id) for worker_id in range(1, 6)]
# Four segments of 1,000 tokens each, and 100 that are of none.
LONG = layout_of(4100, [(0, 1000), (1000, 2000), (2000, 3000), (3000, 4000)])


def plan(case: PlacementCase) -> PlanAnswer:
    answer = plan_prefill(case.question(), NOW_S)
    assert answer is not None
    return answer


def computed_at(answer: PlanAnswer) -> dict[int, int]:
    return {
        index: segment.from_worker.worker_id
        for index, segment in enumerate(answer.plan.segments)
        if segment.source is Source.COMPUTE_AT and segment.from_worker is not None
    }


def test_a_cold_long_prompt_on_an_idle_cluster_is_computed_by_all() -> None:
    answer = plan(PlacementCase(FIVE, LONG))
    assert answer.plan.target == worker(1)
    assert computed_at(answer) == {0: 2, 1: 3, 2: 4, 3: 5}
    # The helpers are done after 10 + 100 ms, and 4,000 tokens share the link: 40 ms + 1 ms.
    assert answer.plan.estimate.arrive_in_s == pytest.approx(0.151)
    # Then 10 ms + 100 * 0.1 ms, where the target alone would need 420 ms.
    assert answer.completion_at_s == pytest.approx(NOW_S + 0.171)
    assert answer.work.step_tokens == 100


def test_each_helper_is_told_its_share_and_when_it_should_be_done() -> None:
    answer = plan(PlacementCase(FIVE, LONG))
    share = answer.helpers[0]
    assert (share.worker, share.segment_indices) == (worker(2), (0,))
    # Alone, from position 0: 1,000**2 / 2 pairs.
    assert (share.work.step_tokens, share.work.attention_pairs) == (1000, 500_000)
    assert share.ready_at_s == pytest.approx(NOW_S + 0.110)
    assert answer.copied_segments == (0, 1, 2, 3)
    assert answer.computed_segments == ()
    assert {transfer.source: transfer.num_tokens for transfer in answer.transfers} == {
        worker(worker_id): 1000 for worker_id in (2, 3, 4, 5)
    }


def test_the_target_waits_for_its_helpers_with_slack() -> None:
    # 151 ms * 2 + 50 ms
    assert plan(PlacementCase(FIVE, LONG)).plan.wait_budget_s == pytest.approx(0.352)


def test_busy_workers_do_not_help() -> None:
    # 1 is idle; the others would not be done before 410 ms, when the target alone has all but finished.
    case = PlacementCase(FIVE, LONG, load={"free_in_s": dict.fromkeys((2, 3, 4, 5), 0.3)})
    answer = plan(case)
    assert answer.plan.target == worker(1)
    assert answer.helpers == ()
    assert computed_at(answer) == {}


def test_a_single_idle_helper_is_no_reason_to_wait() -> None:
    # With all four there the target needs 20 ms, but not before 410 ms; with one there 320 ms, after 110 ms.
    case = PlacementCase(FIVE, LONG, load={"free_in_s": dict.fromkeys((3, 4, 5), 1.0)})
    assert plan(case).helpers == ()


def test_helpers_are_too_dear_where_others_wait_for_engine_time() -> None:
    # They bring 420 - 171 = 249 ms, and must bring 42. They take 4 * (10 + 100) ms of engine time and spare the target
    # 400, so 40 ms more in all: worth it at a price of 5 (249 - 200 > 42), not at 6 (249 - 240 < 42).
    assert plan(PlacementCase(FIVE, LONG, work_price=5.0)).helpers != ()
    assert plan(PlacementCase(FIVE, LONG, work_price=6.0)).helpers == ()


def test_a_slow_link_makes_the_target_compute_all() -> None:
    # 0.2 ms a token on the link, where 0.1 ms computes it.
    slow = [round_card(worker_id, peer_link=LinkFit(floor_s=0.001, bytes_per_s=5e6)) for worker_id in range(1, 6)]
    assert plan(PlacementCase(slow, LONG)).helpers == ()


def test_a_short_prompt_is_not_worth_the_steps_of_helpers() -> None:
    # The target alone needs 10 + 25 ms, a helper 10 + 10 ms and the link.
    short = layout_of(250, [(0, 100), (100, 200)])
    assert plan(PlacementCase(FIVE, short)).helpers == ()


def test_what_saves_little_is_not_worth_approximate_kv() -> None:
    # Helpers bring 420 ms down to 171 ms: 59 % less.
    enough = PlannerSettings(parallel_gain_ratio=0.55)
    too_little = PlannerSettings(parallel_gain_ratio=0.65)
    assert plan(PlacementCase(FIVE, LONG, settings=enough)).helpers != ()
    assert plan(PlacementCase(FIVE, LONG, settings=too_little)).helpers == ()


def test_parallel_prefill_can_be_switched_off() -> None:
    for settings in (PlannerSettings(parallel_prefill=False), PlannerSettings(max_helpers=0)):
        assert plan(PlacementCase(FIVE, LONG, settings=settings)).helpers == ()


def test_there_are_no_more_helpers_than_allowed() -> None:
    answer = plan(PlacementCase(FIVE, LONG, settings=PlannerSettings(max_helpers=2)))
    # Two segments each: 10 + 200 ms, 41 ms on the link, then 20 ms.
    assert sorted(computed_at(answer).values()) == [2, 2, 3, 3]
    assert answer.completion_at_s == pytest.approx(NOW_S + 0.271)


def test_a_worker_without_position_independent_caching_does_not_help() -> None:
    cards = [round_card(1), *(round_card(worker_id, pic=False) for worker_id in range(2, 6))]
    assert plan(PlacementCase(cards, LONG)).helpers == ()


def test_what_somebody_has_is_fetched_and_the_rest_spread() -> None:
    case = PlacementCase(FIVE, LONG, states={(0, 5): STORED, (1, 5): STORED}, load={"free_in_s": {5: 1.0}})
    answer = plan(case)
    by_source = [segment.source for segment in answer.plan.segments]
    assert by_source == [Source.FETCH, Source.FETCH, Source.COMPUTE_AT, Source.COMPUTE_AT]


def test_the_same_text_twice_is_computed_once_alone() -> None:
    first, second, third, fourth = LONG.segments
    again = Segment(third.start, third.end, first.segment_hash, third.mark)
    layout = replace(LONG, segments=(first, second, again, fourth))
    assert set(computed_at(plan(PlacementCase(FIVE, layout)))) == {0, 1, 3}


def test_copies_and_helpers_are_waited_for_together() -> None:
    # 2,000 tokens come from 5 (21 ms) while 3 and 4 compute 1,000 each (110 ms); all their 2,000 share the link behind.
    case = PlacementCase(FIVE, LONG, states={(0, 5): STORED, (1, 5): STORED}, load={"free_in_s": {5: 1.0}})
    assert plan(case).plan.estimate.arrive_in_s == pytest.approx(0.110 + 0.001 + 0.020)


def test_idle_helpers_may_make_an_idle_target_better_than_a_busy_holder() -> None:
    # Alone the holder is best: 200 ms of queue and 10 + 100 ms of compute, where an idle worker takes 10 + 400 ms.
    # With helpers an idle worker takes less than 200 ms.
    case = PlacementCase(
        FIVE,
        layout_of(4000, [(start, start + 600) for start in range(0, 3600, 600)]),
        prefix={5: 3008},
        load={"free_in_s": {5: 0.2}},
    )
    alone = plan(replace(case, settings=PlannerSettings(parallel_prefill=False)))
    assert alone.plan.target == worker(5)
    together = plan(case)
    assert together.plan.target == worker(1)
    assert together.completion_at_s < alone.completion_at_s


# ---- sharing out ----


def missing(index: int, size: int) -> MissingSegment:
    return MissingSegment(index, size, float(size), 0.0, size * 0.0001)


def idle_helper(column: int, begin_s: float = 0.010) -> HelperCost:
    return HelperCost(
        column=column,
        begin_s=begin_s,
        opening_s=0.010,
        per_token_s=0.0001,
        per_pair_s=0.0,
        link_busy_s=0.0,
        weight=0.5,
    )


def shared_out(ordered: list[MissingSegment], helpers: list[HelperCost]) -> list[Share]:
    return share_out(ordered, spread(ordered, helpers).positions, helpers)


def test_the_longest_goes_first_to_who_is_done_first() -> None:
    ordered = longest_first([missing(0, 100), missing(1, 400), missing(2, 300), missing(3, 200)])
    shares = shared_out(ordered, [idle_helper(7), idle_helper(8)])
    # 400 and 100 here, 300 and 200 there: both are done after 10 + 50 ms.
    assert [share.segment_indices for share in shares] == [[1, 0], [2, 3]]
    assert [share.finish_s for share in shares] == pytest.approx([0.060, 0.060])


def test_a_helper_that_begins_late_gets_less() -> None:
    shares = shared_out([missing(index, 100) for index in range(4)], [idle_helper(7), idle_helper(8, begin_s=0.035)])
    # 7 is done after 20, 30 and 40 ms; by then 8, which begins at 35, is the sooner one.
    assert [share.segment_indices for share in shares] == [[0, 1, 2], [3]]


def test_each_way_to_spread_counts_when_it_is_done_and_what_it_costs() -> None:
    ways = spread([missing(0, 400), missing(1, 300), missing(2, 200)], [idle_helper(7), idle_helper(8)])
    # 10 + 40 ms; 10 + 30 ms on the other; 200 more there: 10 + 50 ms.
    assert ways.done_s == pytest.approx([0.050, 0.050, 0.060])
    # Half of 50 ms, of 90 ms and of 110 ms.
    assert ways.cost_to_others_s == pytest.approx([0.025, 0.045, 0.055])


def test_a_helper_whose_link_is_busy_delivers_late() -> None:
    busy = HelperCost(
        column=7, begin_s=0.010, opening_s=0.010, per_token_s=0.0001, per_pair_s=0.0, link_busy_s=0.5, weight=0.0
    )
    assert spread([missing(0, 100)], [busy]).done_s == [0.5]
