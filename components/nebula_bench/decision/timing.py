"""Times calls of several subjects in turn, so that what disturbs the machine disturbs all of them."""

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

Call = Callable[[], Awaitable[float]]
"""Does what is timed once and returns its seconds; what it does before and after is not timed."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Medians of each repetition, in seconds."""

    medians_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return statistics.median(self.medians_s)

    @property
    def spread_ratio(self) -> float:
        """How far the repetitions lie apart, as a share of their median."""
        return (max(self.medians_s) - min(self.medians_s)) / self.median_s


async def time_in_turn(subjects: Mapping[str, Call], *, num_repetitions: int, num_calls: int) -> dict[str, Repeated]:
    """Each repetition calls all subjects `num_calls` times, one after another."""
    medians: dict[str, list[float]] = {name: [] for name in subjects}
    for _ in range(num_repetitions):
        times_s: dict[str, list[float]] = {name: [] for name in subjects}
        for _ in range(num_calls):
            for name, call in subjects.items():
                times_s[name].append(await call())
        for name, values in times_s.items():
            medians[name].append(statistics.median(values))
    return {name: Repeated(tuple(values)) for name, values in medians.items()}


class Stopwatch:
    """`with Stopwatch() as watch: ...`, then `watch.seconds`."""

    __slots__ = ("_started_s", "seconds")

    def __enter__(self) -> "Stopwatch":
        self._started_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._started_s
