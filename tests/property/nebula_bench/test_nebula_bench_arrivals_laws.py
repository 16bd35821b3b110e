"""Laws of Poisson arrivals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebula_bench.arrivals import poisson_arrivals_s

rates = st.floats(min_value=1e-3, max_value=1e4)
seeds = st.integers(min_value=0, max_value=2**63)


@given(rates, seeds, st.integers(min_value=0, max_value=200), st.integers(min_value=0, max_value=200))
def test_a_shorter_replay_is_the_beginning_of_a_longer_one(rate: float, seed: int, one: int, other: int) -> None:
    short, long = sorted((one, other))
    assert np.array_equal(poisson_arrivals_s(short, rate, seed), poisson_arrivals_s(long, rate, seed)[:short])


@given(rates, seeds)
def test_arrivals_ascend_from_above_zero(rate: float, seed: int) -> None:
    arrivals = poisson_arrivals_s(100, rate, seed)
    assert arrivals[0] >= 0
    assert np.all(np.diff(arrivals) >= 0)
    assert np.all(np.isfinite(arrivals))


@given(seeds)
def test_twice_the_rate_is_half_the_time(seed: int) -> None:
    np.testing.assert_allclose(poisson_arrivals_s(50, 20.0, seed), poisson_arrivals_s(50, 10.0, seed) / 2, rtol=1e-12)


def test_gaps_have_the_mean_and_spread_of_an_exponential() -> None:
    gaps_s = np.diff(poisson_arrivals_s(100_001, 20.0, seed=3))
    # Mean and standard deviation are both 1 / 20 s; over 1e5 gaps their errors are 0.3 % and 0.5 % (one sigma).
    assert gaps_s.mean() == pytest.approx(0.05, rel=0.02)
    assert gaps_s.std() == pytest.approx(0.05, rel=0.03)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_not_positive_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        poisson_arrivals_s(3, rate, seed=0)
