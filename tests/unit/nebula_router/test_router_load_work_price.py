from math import exp

import numpy as np
import pytest

from nebula_router.core.work_price import WorkPrice

BUSY = np.array([0.2, 0.2])


def priced(rate_per_s: float, engine_s: float, duration_s: float) -> WorkPrice:
    """Two workers that get so many requests a second in turn, each so long."""
    price = WorkPrice()
    price.resize(2)
    for number in range(int(rate_per_s * duration_s)):
        price.record_dispatch(number % 2, engine_s, number / rate_per_s)
    return price


def test_engine_time_is_free_before_the_first_request() -> None:
    assert WorkPrice().price(np.zeros(0), 1.0) == 0.0
    assert WorkPrice().price(BUSY, 1.0) == 0.0


def test_engine_time_is_free_while_a_newcomer_finds_an_idle_worker() -> None:
    price = priced(rate_per_s=10, engine_s=0.1, duration_s=100)
    assert price.price(np.array([0.0, 0.5]), 100.0) == 0.0


def test_the_price_is_arrivals_in_the_rest_of_the_busy_period() -> None:
    price = priced(rate_per_s=10, engine_s=0.1, duration_s=100)
    # A worker gets 5 requests of 0.1 s a second: 5/s * 0.2 s / (1 - 0.5) = 2.
    assert price.price(BUSY, 100.0) == pytest.approx(2.0, rel=0.02)


def test_rates_are_right_long_before_a_window_has_passed() -> None:
    price = priced(rate_per_s=10, engine_s=0.1, duration_s=3)
    assert price.price(BUSY, 3.0) == pytest.approx(2.0, rel=0.1)


def test_the_price_grows_with_the_utilisation_and_stays_finite() -> None:
    half = priced(rate_per_s=10, engine_s=0.1, duration_s=100).price(BUSY, 100.0)
    most = priced(rate_per_s=10, engine_s=0.18, duration_s=100).price(BUSY, 100.0)
    overload = priced(rate_per_s=10, engine_s=10.0, duration_s=100).price(BUSY, 100.0)
    # 1 - u is 0.5, 0.1 and, with the limit on u, 0.05.
    assert most / half == pytest.approx(5.0, rel=0.1)
    assert overload / half == pytest.approx(10.0, rel=0.1)


def test_the_price_falls_when_requests_stop_coming() -> None:
    price = priced(rate_per_s=10, engine_s=0.1, duration_s=100)
    before = price.price(BUSY, 100.0)
    # Another window later rate and utilisation are 1/e: r / (1 - u) from 5 / 0.5 to 5/e / (1 - 0.5/e).
    after = price.price(BUSY, 110.0)
    assert after / before == pytest.approx(exp(-1) * 0.5 / (1 - 0.5 * exp(-1)), rel=0.02)


def test_one_worker_that_nobody_uses_does_not_make_all_work_free() -> None:
    price = priced(rate_per_s=10, engine_s=0.1, duration_s=100)
    assert price.price(np.array([0.2, 0.0, 0.2, 0.2]), 100.0) > 0


def test_the_order_of_the_workers_does_not_matter() -> None:
    price = priced(rate_per_s=10, engine_s=0.1, duration_s=100)
    backlog_s = np.array([0.3, 0.1, 0.2, 0.4])
    assert price.price(backlog_s, 100.0) == price.price(backlog_s[::-1], 100.0)


def test_recent_work_fades_and_is_forgotten_with_its_worker() -> None:
    price = WorkPrice()
    price.resize(2)
    price.record_dispatch(0, 1.0, 0.0)
    price.record_dispatch(1, 0.5, 10.0)
    assert price.recent_s.tolist() == pytest.approx([exp(-1), 0.5])
    price.clear(0)
    assert price.recent_s.tolist() == pytest.approx([0.0, 0.5])
