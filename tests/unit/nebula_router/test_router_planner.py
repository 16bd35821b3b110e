"""Where requests go and where segments come from. See `placement_case` for the round numbers."""

from dataclasses import replace

import pytest
from support.placement_case import NOW_S, PlacementCase, layout_of, round_card, worker

from nebula_protocol.card import WorkerCard
from nebula_protocol.cost import LinkFit
from nebula_protocol.fusion import Fusion, FusionMethod, legolink
from nebula_protocol.plan import Source
from nebula_router.core.coverage import IN_FLIGHT, STORED, UNCONFIRMED
from nebula_router.core.plan_answer import PlanAnswer, Transfer
from nebula_router.core.plan_question import PlannerSettings
from nebula_router.core.planner import plan_prefill

ALONE = PlannerSettings(parallel_prefill=False)
ONE, TWO, THREE = ([round_card(worker_id) for worker_id in range(1, number + 1)] for number in (1, 2, 3))


def plan(case: PlacementCase) -> PlanAnswer:
    answer = plan_prefill(case.question(), NOW_S)
    assert answer is not None
    return answer


def slow_link(worker_id: int) -> WorkerCard:
    """0.2 ms a token on the link, where 0.1 ms computes it."""
    return round_card(worker_id, peer_link=LinkFit(floor_s=0.001, bytes_per_s=5e6))


def sources(answer: PlanAnswer) -> list[tuple[Source, int | None]]:
    """Each segment's source and the id of the worker that it names."""
    return [
        (segment.source, segment.from_worker.worker_id if segment.from_worker else None)
        for segment in answer.plan.segments
    ]


# ---- placement ----


def test_no_plan_is_made_where_no_worker_can_take_the_prompt() -> None:
    assert plan_prefill(PlacementCase([], layout_of(100, [])).question(), NOW_S) is None
    full = PlacementCase(ONE, layout_of(100, []), excluded=frozenset({1}))
    assert plan_prefill(full.question(), NOW_S) is None


def test_equal_workers_are_taken_by_id() -> None:
    case = PlacementCase(THREE, layout_of(100, []))
    assert plan(case).plan.target == worker(1)


def test_among_equal_workers_the_one_with_least_recent_work_is_taken() -> None:
    case = PlacementCase(THREE, layout_of(100, []), load={"recent_work_s": {1: 0.5, 2: 0.2, 3: 0.3}})
    assert plan(case).plan.target == worker(2)


def test_a_difference_within_the_estimates_error_is_none() -> None:
    # 110 ms on both, and 1 ms of queue on the second: less than 2 % of 110 ms.
    near = {"free_in_s": {2: 0.001}, "recent_work_s": {1: 0.5}}
    far = {"free_in_s": {2: 0.003}, "recent_work_s": {1: 0.5}}
    assert plan(PlacementCase(TWO, layout_of(1000, []), load=near)).plan.target == worker(2)
    assert plan(PlacementCase(TWO, layout_of(1000, []), load=far)).plan.target == worker(1)


def test_a_hit_attracts_while_its_worker_is_free() -> None:
    case = PlacementCase(TWO, layout_of(1000, []), prefix={2: 800})
    assert plan(case).plan.target == worker(2)


def test_a_hit_does_not_attract_to_a_queue_that_is_longer_than_what_it_saves() -> None:
    # The hit saves 80 ms.
    short = PlacementCase(TWO, layout_of(1000, []), prefix={2: 800}, load={"free_in_s": {2: 0.070}})
    long = PlacementCase(TWO, layout_of(1000, []), prefix={2: 800}, load={"free_in_s": {2: 0.090}})
    assert plan(short).plan.target == worker(2)
    assert plan(long).plan.target == worker(1)


def test_dear_engine_time_makes_a_hit_worth_a_longer_queue() -> None:
    # 90 ms of queue against 80 ms of compute, which at price 1 cost the others 80 ms more.
    case = PlacementCase(TWO, layout_of(1000, []), prefix={2: 800}, load={"free_in_s": {2: 0.090}}, work_price=1.0)
    assert plan(case).plan.target == worker(2)


def test_a_request_keeps_away_from_a_step_that_many_wait_for() -> None:
    # Both are free in 50 ms; 3 requests that wait on the first would wait for this one's 100 ms.
    case = PlacementCase(TWO, layout_of(1000, []), load={"free_in_s": {1: 0.050, 2: 0.055}, "co_batched": {1: 3.0}})
    assert plan(case).plan.target == worker(2)


def test_an_excluded_worker_is_neither_target_nor_source_nor_helper() -> None:
    case = PlacementCase(
        THREE,
        layout_of(4000, [(0, 1900), (1900, 3900)]),
        prefix={3: 3200},
        states={(1, 3): STORED},
        excluded=frozenset({3}),
    )
    answer = plan(case)
    assert answer.plan.target != worker(3)
    assert worker(3) not in {segment.from_worker for segment in answer.plan.segments}
    assert worker(3) not in {helper.worker for helper in answer.helpers}


# ---- sources ----


@pytest.mark.parametrize("state", [STORED, UNCONFIRMED])
def test_a_segment_at_the_target_is_local(state: int) -> None:
    answer = plan(PlacementCase(TWO, layout_of(1000, [(100, 900)]), states={(0, 2): state}))
    assert answer.plan.target == worker(2)
    assert sources(answer) == [(Source.LOCAL, None)]
    assert answer.plan.wait_budget_s == 0.0
    assert answer.work.step_tokens == 200


def test_an_unknown_segment_is_computed_in_context() -> None:
    answer = plan(PlacementCase(ONE, layout_of(1000, [(100, 900)])))
    assert sources(answer) == [(Source.COMPUTE, None)]
    assert (answer.computed_segments, answer.copied_segments, answer.transfers) == ((0,), (), ())


def test_a_segment_under_the_prefix_hit_is_local() -> None:
    answer = plan(PlacementCase(ONE, layout_of(1000, [(0, 400), (400, 900)]), prefix={1: 400}))
    assert sources(answer) == [(Source.LOCAL, None), (Source.COMPUTE, None)]
    assert answer.plan.prefix_hit_tokens == 400


def test_a_segment_that_the_prefix_covers_in_part_is_computed_and_claimed() -> None:
    answer = plan(PlacementCase(ONE, layout_of(1000, [(100, 900)]), prefix={1: 480}))
    assert sources(answer) == [(Source.COMPUTE, None)]
    assert answer.computed_segments == (0,)
    assert answer.work.step_tokens == 520


def test_a_segment_is_fetched_from_a_busy_holder() -> None:
    case = PlacementCase(TWO, layout_of(1000, [(100, 900)]), states={(0, 2): STORED}, load={"free_in_s": {2: 1.0}})
    answer = plan(case)
    assert answer.plan.target == worker(1)
    assert sources(answer) == [(Source.FETCH, 2)]
    # 1 ms + 800 * 0.01 ms; then 10 ms + 200 * 0.1 ms.
    assert answer.runnable_at_s == pytest.approx(NOW_S + 0.009)
    assert answer.completion_at_s == pytest.approx(NOW_S + 0.039)
    assert answer.copied_segments == (0,)
    assert answer.transfers == (Transfer(worker(2), 800),)


def test_a_slow_link_makes_the_target_compute() -> None:
    slow = [slow_link(worker_id) for worker_id in (1, 2)]
    case = PlacementCase(
        slow, layout_of(1000, [(100, 900)]), states={(0, 2): STORED}, load={"free_in_s": {2: 1.0}}, settings=ALONE
    )
    answer = plan(case)
    assert answer.plan.target == worker(1)
    assert sources(answer) == [(Source.COMPUTE, None)]


def test_a_slow_link_is_used_while_the_target_is_busy_anyway() -> None:
    # 161 ms on the link are hidden by a queue of 200 ms.
    slow = [slow_link(worker_id) for worker_id in (1, 2)]
    case = PlacementCase(
        slow,
        layout_of(1000, [(100, 900)]),
        states={(0, 2): STORED},
        load={"free_in_s": {1: 0.2, 2: 1.0}},
        settings=ALONE,
    )
    assert sources(plan(case)) == [(Source.FETCH, 2)]


def test_the_source_is_the_holder_whose_link_is_free_first() -> None:
    case = PlacementCase(
        THREE,
        layout_of(1000, [(100, 900)]),
        states={(0, 2): STORED, (0, 3): STORED},
        load={"free_in_s": {2: 1.0, 3: 1.0}, "link_out_busy_s": {2: 0.002}},
    )
    assert sources(plan(case)) == [(Source.FETCH, 3)]


def test_equal_sources_are_taken_by_id_and_in_turn() -> None:
    case = PlacementCase(
        THREE,
        layout_of(1000, [(100, 400), (400, 700)]),
        states={(0, 2): STORED, (0, 3): STORED, (1, 2): STORED, (1, 3): STORED},
        load={"free_in_s": {2: 1.0, 3: 1.0}},
    )
    # What stands last is copied first, from the lowest id; the other one then finds that link taken.
    assert sources(plan(case)) == [(Source.FETCH, 3), (Source.FETCH, 2)]


def test_a_confirmed_copy_is_preferred_to_one_that_is_not() -> None:
    case = PlacementCase(
        THREE,
        layout_of(1000, [(100, 900)]),
        states={(0, 2): UNCONFIRMED, (0, 3): STORED},
        load={"free_in_s": {2: 1.0, 3: 1.0}},
    )
    assert sources(plan(case)) == [(Source.FETCH, 3)]


def test_what_is_being_computed_elsewhere_is_joined_when_that_is_sooner() -> None:
    soon = PlacementCase(
        TWO,
        layout_of(1000, [(100, 900)]),
        states={(0, 2): IN_FLIGHT},
        ready_in_s={(0, 2): 0.020},
        load={"free_in_s": {2: 1.0}},
    )
    late = replace(soon, ready_in_s={(0, 2): 0.500})
    assert sources(plan(soon)) == [(Source.JOIN, 2)]
    assert sources(plan(late)) == [(Source.COMPUTE, None)]


def test_what_is_being_computed_at_the_target_is_joined_there_without_a_claim() -> None:
    case = PlacementCase(ONE, layout_of(1000, [(100, 900)]), states={(0, 1): IN_FLIGHT}, ready_in_s={(0, 1): 0.020})
    answer = plan(case)
    assert sources(answer) == [(Source.JOIN, 1)]
    assert (answer.computed_segments, answer.copied_segments, answer.transfers) == ((), (), ())
    assert answer.runnable_at_s == pytest.approx(NOW_S + 0.020)


def test_a_prefix_that_is_being_computed_at_the_target_is_joined() -> None:
    case = PlacementCase(
        ONE,
        layout_of(1000, [(0, 96), (96, 800)]),
        prefix={1: 800},
        states={(1, 1): IN_FLIGHT},
        ready_in_s={(1, 1): 0.020},
    )
    assert sources(plan(case)) == [(Source.LOCAL, None), (Source.JOIN, 1)]


def test_remote_reuse_can_be_switched_off() -> None:
    case = PlacementCase(
        TWO,
        layout_of(1000, [(100, 900)]),
        states={(0, 2): STORED},
        load={"free_in_s": {2: 1.0}},
        settings=PlannerSettings(remote_reuse=False, parallel_prefill=False),
    )
    assert sources(plan(case)) == [(Source.COMPUTE, None)]


def test_an_exact_request_has_no_segments_in_its_plan() -> None:
    case = PlacementCase(
        TWO,
        layout_of(1000, [(100, 900)]),
        prefix={1: 96},
        states={(0, 2): STORED},
        settings=PlannerSettings(pic=False),
    )
    answer = plan(case)
    assert answer.plan.target == worker(1)
    assert (answer.plan.segments, answer.plan.pic) == ((), False)
    assert (answer.computed_segments, answer.copied_segments, answer.helpers) == ((), (), ())
    assert answer.work.step_tokens == 904


# ---- what is recorded ----


def test_a_segment_at_offset_zero_is_not_claimed_since_it_is_its_own_prefix() -> None:
    answer = plan(PlacementCase(ONE, layout_of(1000, [(0, 400), (400, 900)])))
    assert answer.computed_segments == (1,)


def test_what_the_target_holds_but_computes_is_not_claimed() -> None:
    recomputes = [round_card(1, fusion=legolink(500))]
    answer = plan(PlacementCase(recomputes, layout_of(1000, [(100, 400)]), states={(0, 1): STORED}))
    assert sources(answer) == [(Source.COMPUTE, None)]
    assert answer.computed_segments == ()


def test_the_target_may_wait_for_the_estimate_with_slack() -> None:
    case = PlacementCase(
        TWO,
        layout_of(1000, [(100, 900)]),
        states={(0, 2): STORED},
        load={"free_in_s": {2: 1.0}},
        settings=PlannerSettings(wait_slack_ratio=0.5),
    )
    # 9 ms * 1.5 + 50 ms
    assert plan(case).plan.wait_budget_s == pytest.approx(0.0635)


def test_the_estimate_adds_up() -> None:
    case = PlacementCase(
        TWO, layout_of(1000, [(100, 900)]), states={(0, 2): STORED}, load={"free_in_s": {1: 0.004, 2: 1.0}}
    )
    estimate = plan(case).plan.estimate
    assert estimate.free_in_s == pytest.approx(0.004)
    assert estimate.arrive_in_s == pytest.approx(0.009)
    assert estimate.compute_s == pytest.approx(0.030)
    assert estimate.completion_s == pytest.approx(0.039)


def test_the_best_workers_are_told_with_their_hits() -> None:
    case = PlacementCase(
        [*THREE, round_card(4)],
        layout_of(1000, [(100, 900)]),
        prefix={2: 400, 3: 96},
        states={(0, 3): STORED},
        load={"free_in_s": {4: 1.0}},
        settings=PlannerSettings(parallel_prefill=False, remote_reuse=False),
    )
    told = [
        (candidate.worker.worker_id, candidate.prefix_hit_tokens, candidate.segment_hit_tokens)
        for candidate in plan(case).candidates
    ]
    # 3 has the first 96 tokens and tokens 100 to 900, 2 the first 400, 1 nothing; 4 comes later than all.
    assert told == [(3, 96, 800), (2, 400, 0), (1, 0, 0), (4, 0, 0)]


def test_a_candidate_tells_what_would_be_copied_and_what_the_request_would_cost_others() -> None:
    case = PlacementCase(
        TWO, layout_of(1000, [(100, 900)]), states={(0, 2): STORED}, load={"free_in_s": {2: 1.0}}, settings=ALONE
    )
    chosen, other = plan(replace(case, work_price=0.5)).candidates
    # The one that has the segment is free in a second; the other would copy its 800 tokens.
    assert (chosen.worker, chosen.segment_hit_tokens, chosen.copied_tokens) == (worker(1), 800, 800)
    assert (other.worker, other.segment_hit_tokens, other.copied_tokens) == (worker(2), 800, 0)
    # Others wait half of the 20 ms that 200 tokens take, the floor of the step apart.
    for candidate in (chosen, other):
        assert candidate.score_s is not None
        assert candidate.score_s - candidate.estimate.completion_s == pytest.approx(0.5 * 0.020)


def test_no_more_candidates_are_told_than_the_settings_say() -> None:
    case = PlacementCase([round_card(worker_id) for worker_id in range(1, 11)], layout_of(1000, []))
    for told, num_candidates in ((8, 8), (3, 3), (0, 0), (20, 10)):
        answer = plan(replace(case, settings=PlannerSettings(told_candidates=told)))
        assert len(answer.candidates) == num_candidates


def test_recomputed_tokens_of_a_reused_segment_count_as_hits() -> None:
    both = Fusion(FusionMethod.CACHEBLEND, leading_tokens=16, ratio=0.25)
    cards = [round_card(worker_id, fusion=both, num_layers=16) for worker_id in (1, 2)]
    case = PlacementCase(
        cards, layout_of(1000, [(100, 500), (500, 900)]), states={(0, 1): STORED, (1, 1): STORED}, settings=ALONE
    )
    answer = plan(case)
    # 2 * 16 tokens; of 2 * 384 a quarter, and the probe through 2 of 16 layers; and the 200 that are of no segment.
    assert answer.work.step_tokens == 32 + 192 + 96 + 200
    assert answer.candidates[0].segment_hit_tokens == 800
