"""Distributions as Prometheus exports them: counts by upper bound."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]` observations were at most `bounds[i]`, which ascend to infinity: counts are cumulative."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    @property
    def num_observations(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    def __add__(self, other: "Histogram") -> "Histogram":
        """Both together.

        Raises:
            ValueError: their bounds differ.
        """
        if not self.counts:
            return other
        if not other.counts:
            return self
        if self.bounds != other.bounds:
            raise ValueError("histograms with different bounds cannot be added")
        return Histogram(self.bounds, tuple(map(float.__add__, self.counts, other.counts)))

    def quantile(self, share: float) -> float | None:
        """Estimated like PromQL's `histogram_quantile`: observations lie evenly within a bucket.

        One beyond the last finite bound counts as that bound. None without observations.
        """
        wanted = share * self.num_observations
        if not wanted:
            return None
        low, below = 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count >= wanted:
                if math.isinf(bound):
                    break
                return low + (bound - low) * (wanted - below) / (count - below)
            low, below = bound, count
        return low
