"""Means with confidence intervals."""

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

_CONFIDENCE = 0.95
_SEED = 0
_CHUNK = 512
"""Resamples drawn at once, so that memory does not grow with their number."""


class Interval(msgspec.Struct, frozen=True):
    """An estimate, and the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float


def mean_interval(values: Sequence[float], num_resamples: int) -> Interval:
    """Of the mean, by the percentile bootstrap (Efron 1979). Equal values give equal intervals."""
    array = np.asarray(values, dtype=np.float64)
    means = np.concatenate([array[picks].mean(axis=1) for picks in _resamples(len(array), num_resamples)])
    return _interval(float(array.mean()), means)


def ratio_interval(upper: Sequence[float], lower: Sequence[float], num_resamples: int) -> Interval | None:
    """Of the ratio of two means over the same prompts, which are drawn together; None where the lower mean is 0."""
    above, below = np.asarray(upper, dtype=np.float64), np.asarray(lower, dtype=np.float64)
    if below.mean() == 0:
        return None
    ratios = np.concatenate(
        [
            above[picks].mean(axis=1) / np.maximum(below[picks].mean(axis=1), np.finfo(np.float64).tiny)
            for picks in _resamples(len(above), num_resamples)
        ]
    )
    return _interval(float(above.mean() / below.mean()), ratios)


def _resamples(num_values: int, num_resamples: int) -> list[npt.NDArray[np.int64]]:
    """Indices with replacement, shape [chunk, values] each."""
    chance = np.random.default_rng(_SEED)
    starts = range(0, num_resamples, _CHUNK)
    return [
        chance.integers(0, num_values, size=(min(_CHUNK, num_resamples - start), num_values), dtype=np.int64)
        for start in starts
    ]


def _interval(value: float, resampled: npt.NDArray[np.float64]) -> Interval:
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(resampled, (tail, 1 - tail))
    return Interval(value, float(low), float(high))
