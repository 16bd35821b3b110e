"""The search for the rate at which workers are as busy as wanted."""

import pytest

from nebula_bench.errors import CellError
from nebula_bench.paper.rates import find_rate


def saturating(rate_per_s: float) -> float:
    """Busy in proportion to the rate up to 90 %, slower after that, never over 100 %."""
    straight = rate_per_s / 100
    return min(1.0, straight if straight <= 0.9 else 0.9 + (straight - 0.9) / 4)


@pytest.mark.parametrize("first_rate_per_s", [5.0, 60.0, 500.0])
@pytest.mark.parametrize(("target", "rate_per_s"), [(0.8, 80.0), (0.95, 110.0)])
def test_the_rate_is_found_from_below_and_from_above(target: float, rate_per_s: float, first_rate_per_s: float) -> None:
    found = find_rate(saturating, target, first_rate_per_s)
    # Within 0.4 points: 0.4 requests a second where busy time follows the rate, 1.6 beyond 90 %.
    assert found == pytest.approx(rate_per_s, abs=0.4 if target < 0.9 else 1.6)


def test_where_busy_time_jumps_the_nearer_side_is_taken() -> None:
    assert find_rate(lambda rate: 0.79 if rate < 50 else 0.9, 0.8, 40.0) < 50


def test_a_load_that_no_rate_comes_near_is_an_error() -> None:
    with pytest.raises(CellError, match="80%"):
        find_rate(lambda rate: 0.5 if rate < 50 else 1.0, 0.8, 40.0)


def test_a_rate_has_three_digits_so_that_it_can_be_named() -> None:
    found = find_rate(lambda rate: rate / 123.456, 0.8, 60.0)
    assert found == float(f"{found:.3g}")
