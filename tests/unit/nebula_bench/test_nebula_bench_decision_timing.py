"""Timing in turn."""

import pytest

from nebula_bench.decision.timing import Repeated, time_in_turn


async def test_subjects_are_called_in_turn_and_each_repetition_has_its_median() -> None:
    calls: list[str] = []
    answers_s = iter([1.0, 5.0, 9.0, 2.0, 2.0, 8.0])

    async def one() -> float:
        calls.append("one")
        return next(answers_s)

    async def other() -> float:
        calls.append("other")
        return 0.5

    times = await time_in_turn({"one": one, "other": other}, num_repetitions=2, num_calls=3)
    assert calls == ["one", "other"] * 6
    assert times["one"] == Repeated((5.0, 2.0))  # the middle of 1, 5, 9 and of 2, 2, 8
    assert times["other"] == Repeated((0.5, 0.5))


def test_the_reported_number_is_the_median_of_medians_and_the_spread_their_range() -> None:
    repeated = Repeated((1.0, 2.0, 4.0))
    assert repeated.median_s == 2.0
    assert repeated.spread_ratio == pytest.approx(1.5)  # (4 - 1) / 2
