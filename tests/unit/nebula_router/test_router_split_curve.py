"""The time saved at every split, from what single requests would have saved."""

from math import inf

import pytest

from nebula_router.core.split_curve import NEVER, NUM_STEPS, RequestCurve, SplitCurve, step_from, step_until


def curve(*requests: RequestCurve, horizon_requests: float = 1e9) -> SplitCurve:
    learned = SplitCurve(horizon_requests=horizon_requests)
    for one in requests:
        learned.add(one)
    return learned


def request(
    prefill_s: float, *, prefix: tuple[int, float] | None = None, segment: tuple[int, float] | None = None
) -> RequestCurve:
    """Steps and what is saved."""
    one = RequestCurve(prefill_s)
    if prefix is not None:
        one.add_prefix(*prefix)
    if segment is not None:
        one.add_segment(*segment)
    return one


def saved(of: SplitCurve, *steps: int) -> list[float]:
    ratios = of.saved_ratios()
    return [round(ratios[step], 6) for step in steps]


def test_without_requests_nothing_is_saved_anywhere() -> None:
    assert curve().saved_ratios() == [0.0] * (NUM_STEPS + 1)


def test_a_prefix_hit_counts_from_the_split_on_that_has_room_for_it() -> None:
    # 4 of 10 seconds.
    assert saved(curve(request(10.0, prefix=(40, 4.0))), 0, 39, 40, NUM_STEPS) == [0.0, 0.0, 0.4, 0.4]


def test_a_prefix_that_no_split_has_room_for_counts_nowhere() -> None:
    assert saved(curve(request(10.0, prefix=(NEVER, 4.0))), 0, NUM_STEPS) == [0.0, 0.0]


def test_a_segment_hit_counts_below_the_split_that_lacks_room_for_it() -> None:
    assert saved(curve(request(10.0, segment=(40, 4.0))), 0, 39, 40, NUM_STEPS) == [0.4, 0.4, 0.0, 0.0]


def test_a_segment_that_no_split_has_room_for_counts_nowhere() -> None:
    assert saved(curve(request(10.0, segment=(0, 4.0))), 0, NUM_STEPS) == [0.0, 0.0]


def test_parts_of_a_prompt_add_up() -> None:
    one = request(10.0, prefix=(40, 1.0), segment=(40, 2.0))
    one.add_prefix(40, 1.5)
    one.add_segment(60, 0.5)
    # Below 40 both segments, 2.5; from 40 to 59 both prefixes and the second segment, 3; above the prefixes, 2.5.
    assert saved(curve(one), 39, 40, 59, 60) == [0.25, 0.3, 0.3, 0.25]


def test_requests_fade_with_the_horizon() -> None:
    first, last = request(1.0, prefix=(0, 1.0)), request(1.0)
    learned = curve(first, *[request(0.0)] * 10, last, horizon_requests=10.0)
    # The first weighs exp(-11 / 10) = 0.332871 of the last: 0.332871 / 1.332871.
    assert saved(learned, 0) == [0.249740]


def test_very_many_requests_neither_overflow_nor_change_what_is_learned() -> None:
    learned = curve(*[request(10.0, prefix=(40, 4.0))] * 1_000, horizon_requests=1.0)
    assert saved(learned, 39, 40) == [0.0, 0.4]
    # With a weight of e^-1 for each before, sums grow by 1 / (1 - e^-1) and squares by 1 / (1 - e^-2): an error of
    # 0.4 * (1 - 0.367879) / sqrt(1 - 0.135335).
    assert learned.best_splits(0.0, tolerance=0.0).error_ratio == pytest.approx(0.271917, abs=1e-6)


def test_the_best_splits_are_those_around_the_best_that_are_as_good() -> None:
    learned = curve(request(10.0, prefix=(30, 5.0), segment=(91, 1.0)))
    # Below 30 only the segment: 0.1. From 30 to 90 both: 0.6. From 91 on the prefix: 0.5.
    best = learned.best_splits(0.0, tolerance=0.01)
    assert (best.first, best.last) == (30, 90)
    assert best.gain_ratio == pytest.approx(0.5)


def test_a_worse_split_between_two_good_ones_parts_them() -> None:
    learned = curve(request(10.0, prefix=(60, 4.9), segment=(20, 5.0)))
    # 0.5 up to 19, 0.49 from 60 on, nothing between.
    best = learned.best_splits(1.0, tolerance=0.02)
    assert (best.first, best.last) == (0, 19)
    # 0.5 - 0.49.
    assert best.gain_ratio == pytest.approx(0.01)


def test_where_all_splits_are_equal_all_are_best() -> None:
    best = curve(request(10.0, prefix=(0, 5.0))).best_splits(0.3, tolerance=0.001)
    assert (best.first, best.last, best.gain_ratio, best.error_ratio) == (0, NUM_STEPS, 0.0, 0.0)


def test_the_present_split_may_lie_between_two_steps() -> None:
    learned = curve(request(10.0, prefix=(64, 8.0)))
    # Half-way from step 63 (0) to step 64 (0.8) 0.4 is saved, 0.4 less than the best.
    assert learned.best_splits(63.5 / NUM_STEPS, tolerance=0.001).gain_ratio == pytest.approx(0.4)


def test_what_rests_on_few_requests_has_a_large_error() -> None:
    for num_requests in (1, 4, 100):
        learned = curve(*[request(10.0, prefix=(40, 4.0))] * num_requests)
        # Each of n requests changes the curve by 4 of 10 n seconds: sqrt(n) * 4 / (10 n).
        best = learned.best_splits(0.0, tolerance=0.001)
        assert best.gain_ratio == pytest.approx(0.4)
        assert best.error_ratio == pytest.approx(0.4 / num_requests**0.5)


def test_only_changes_between_the_present_and_the_best_splits_can_err() -> None:
    learned = curve(request(10.0, prefix=(40, 4.0)), request(10.0, prefix=(90, 0.01)), request(10.0, segment=(20, 1.0)))
    # From step 30 to the best ones, which begin at 40, since 0.01 of 30 seconds is within the tolerance.
    assert learned.best_splits(30 / NUM_STEPS, tolerance=0.001).error_ratio == pytest.approx(4.0 / 30.0)


@pytest.mark.parametrize(
    ("room_tokens", "step"),
    [
        (-5.0, 0),  # It fits the device tier.
        (0.0, 0),
        (1.0, 1),  # 1 of 1,280 tokens needs 0.1 of a step, so one.
        (10.0, 1),  # 10 tokens are one step of 1,280 / 128.
        (11.0, 2),
        (1_280.0, NUM_STEPS),
        (1_281.0, NEVER),
        (inf, NEVER),
    ],
)
def test_blocks_are_a_hit_from_the_first_step_with_room_enough(room_tokens: float, step: int) -> None:
    assert step_from(room_tokens, 1_280.0) == step


@pytest.mark.parametrize(
    ("room_tokens", "step"),
    [
        (0.0, NEVER),  # Even where blocks have all of the store.
        (1.0, NUM_STEPS),  # At step 127 segments have 10 tokens, at step 128 none.
        (10.0, NUM_STEPS),
        (11.0, NUM_STEPS - 1),
        (1_280.0, 1),  # Only at step 0 do segments have the whole store.
        (1_281.0, 0),
        (inf, 0),
    ],
)
def test_segments_are_a_hit_up_to_the_last_step_with_room_enough(room_tokens: float, step: int) -> None:
    assert step_until(room_tokens, 1_280.0) == step
