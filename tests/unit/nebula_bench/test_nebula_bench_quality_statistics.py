"""Divergence, agreement and confidence intervals."""

import math

import numpy as np
import pytest

from nebula_bench.quality.divergence import common_tokens, kl_divergence
from nebula_bench.quality.engine import Logits
from nebula_bench.quality.interval import mean_interval, ratio_interval


def logits_of(*probabilities: float) -> Logits:
    return np.log(np.array(probabilities, dtype=np.float32))


def test_equal_logits_have_no_divergence_at_all() -> None:
    logits = np.linspace(-20, 20, 1000, dtype=np.float32)
    assert kl_divergence(logits, logits.copy()) == 0.0


def test_the_divergence_is_that_of_the_distributions() -> None:
    # 1/2 ln((1/2)/(1/4)) + 1/2 ln((1/2)/(3/4)) = 1/2 ln 2 + 1/2 ln 2/3 = 1/2 ln 4/3
    assert kl_divergence(logits_of(0.5, 0.5), logits_of(0.25, 0.75)) == pytest.approx(0.5 * math.log(4 / 3), rel=1e-6)


def test_the_divergence_ignores_what_softmax_ignores() -> None:
    truth, other = logits_of(0.5, 0.5), logits_of(0.25, 0.75)
    shifted = kl_divergence(truth + np.float32(1000), other - np.float32(7))
    assert shifted == pytest.approx(kl_divergence(truth, other), rel=1e-4)


def test_the_divergence_is_taken_from_the_side_of_full_prefill() -> None:
    # 0.9 ln(0.9/0.5) + 0.1 ln(0.1/0.5), and not 0.5 ln(0.5/0.9) + 0.5 ln(0.5/0.1)
    expected = 0.9 * math.log(1.8) + 0.1 * math.log(0.2)
    assert kl_divergence(logits_of(0.9, 0.1), logits_of(0.5, 0.5)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("first", "second", "expected"), [([1, 2, 3], [1, 2, 3], 3), ([1, 2, 3], [1, 9, 3], 1), ([1, 2], [2, 1], 0)]
)
def test_answers_agree_up_to_their_first_difference(first: list[int], second: list[int], expected: int) -> None:
    assert common_tokens(first, second) == expected


def test_answers_of_unequal_length_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        common_tokens([1, 2], [1])


def test_the_interval_of_the_mean_is_about_two_standard_errors_wide_on_each_side() -> None:
    values = np.random.default_rng(5).normal(10.0, 2.0, size=400)
    interval = mean_interval(values.tolist(), num_resamples=2000)
    error = float(values.std()) / math.sqrt(400)
    assert interval.value == pytest.approx(float(values.mean()))
    assert interval.high - interval.value == pytest.approx(1.96 * error, rel=0.15)
    assert interval.value - interval.low == pytest.approx(1.96 * error, rel=0.15)


def test_equal_values_leave_no_doubt() -> None:
    interval = mean_interval([0.25] * 10, num_resamples=100)
    assert (interval.low, interval.value, interval.high) == (0.25, 0.25, 0.25)


def test_an_interval_is_the_same_each_time() -> None:
    values = [0.0, 1.0, 5.0, 2.0]
    assert mean_interval(values, num_resamples=1000) == mean_interval(values, num_resamples=1000)


def test_a_ratio_of_values_that_vary_together_is_certain() -> None:
    lower = [1.0, 2.0, 30.0, 4.0]
    interval = ratio_interval([3 * value for value in lower], lower, num_resamples=500)
    assert interval is not None
    assert (interval.low, interval.value, interval.high) == pytest.approx((3.0, 3.0, 3.0))


def test_there_is_no_ratio_to_nothing() -> None:
    assert ratio_interval([1.0, 2.0], [0.0, 0.0], num_resamples=100) is None
