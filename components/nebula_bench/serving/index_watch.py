"""How many workers the router's index has, while workers die and come back."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from nebula_bench.serving.process_metrics import ProcessMetrics

_PERIOD_S = 0.1


class IndexWatch:
    """
    Args:
        scrape_routers: the metrics of the routers that answer at this moment.
    """

    def __init__(self, scrape_routers: Callable[[], Awaitable[Sequence[ProcessMetrics]]]) -> None:
        self._scrape_routers = scrape_routers
        self.samples: list[tuple[float, int]] = []
        """(seconds of `time.perf_counter`, workers), in order."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for metrics in await self._scrape_routers():
                if (num_workers := metrics.num_workers()) is not None:
                    self.samples.append((time.perf_counter(), num_workers))
            await asyncio.sleep(_PERIOD_S)

    def fewest_after(self, at_s: float) -> int | None:
        """None without a sample."""
        return min((workers for sampled_s, workers in self.samples if sampled_s >= at_s), default=None)

    def complete_again_s(self, at_s: float, wanted: int) -> float | None:
        """Time of the first sample with all workers that follows one without; None: there is none."""
        after = [(sampled_s, workers) for sampled_s, workers in self.samples if sampled_s >= at_s]
        short_s = next((sampled_s for sampled_s, workers in after if workers < wanted), None)
        if short_s is None:
            return None
        return next((sampled_s for sampled_s, workers in after if sampled_s > short_s and workers >= wanted), None)
