"""At which rate the reference policy's workers are as busy as wanted."""

from collections.abc import Callable

from nebula_bench.errors import CellError

_CLOSE_ENOUGH = 0.004
_TOO_FAR = 0.03
_MAX_RUNS = 10
_NEAR_SATURATION = 0.85
_REACH_NEAR_SATURATION = 3.0
_SATURATED = 0.985


def find_rate(busy_at: Callable[[float], float], target: float, first_rate_per_s: float) -> float:
    """The rate, of three digits, that brought `busy_at` nearest to `target`: within 0.4 points, or after ten runs.

    Busy time grows almost in proportion to the rate until workers are saturated, so the first guesses follow the line
    through the origin; once there is a rate on each side, the place between them is taken that a straight line gives.
    A finite trace makes small steps in it, so that the target itself may be met by no rate.

    Raises:
        CellError: none came within 3 points.
    """
    low, high = (0.0, 0.0), (float("inf"), 1.0)
    tried: dict[float, float] = {}
    rate = _rounded(first_rate_per_s)
    while rate not in tried and len(tried) < _MAX_RUNS:
        busy = tried[rate] = busy_at(rate)
        if abs(busy - target) <= _CLOSE_ENOUGH:
            return rate
        if busy < target:
            low = (rate, busy)
        else:
            high = (rate, busy)
        rate = _rounded(_next_rate(low, high, target))
    nearest = min(tried, key=lambda rate: abs(tried[rate] - target))
    if abs(tried[nearest] - target) > _TOO_FAR:
        raise CellError(f"no rate found at which workers are {target:.0%} busy; at {nearest:g}/s {tried[nearest]:.1%}")
    return nearest


def _next_rate(low: tuple[float, float], high: tuple[float, float], target: float) -> float:
    low_rate, low_busy = low
    high_rate, high_busy = high
    if high_rate == float("inf"):
        # Near saturation busy time grows ever more slowly, and the line through the origin would creep.
        reach = _REACH_NEAR_SATURATION if low_busy > _NEAR_SATURATION else 1.0
        return low_rate * (1 + reach * (target / low_busy - 1))
    if high_busy > _SATURATED:
        # How far beyond saturation it is cannot be seen.
        return (low_rate + high_rate) / 2
    share = (target - low_busy) / (high_busy - low_busy)
    return low_rate + (high_rate - low_rate) * min(max(share, 0.1), 0.9)


def _rounded(rate_per_s: float) -> float:
    return float(f"{rate_per_s:.3g}")
