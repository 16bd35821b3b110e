"""What engine time is worth right now, and who spent how much of it lately."""

from math import exp

import numpy as np

from nebula_router.core.load_snapshot import FloatArray

# Rates are means over about this long: hundreds of requests, yet shorter than a shift of load.
_WINDOW_S = 10.0
# Rates over less time than this say nothing.
_MIN_OBSERVED_S = 1.0
# Above this utilisation the formula's 1 / (1 - u) is all noise.
_MAX_UTILISATION = 0.95


class WorkPrice:
    """Seconds that one second of engine time, spent now, costs the requests that follow.

    Work put on a queue with backlog V delays everybody who arrives before the queue is empty. In an M/G/1 queue with
    arrival rate r and utilisation u those are r * V / (1 - u) requests in the mean: each second of work begets u
    seconds of arriving work, so what is left of the busy period lasts V / (1 - u). A router that levels backlogs makes
    one queue of the cluster, and nobody is delayed while some worker idles: r and u are those of the mean worker, and
    V is the backlog of the workers that a newcomer would turn to, the lower quartile over all (not the least: one
    worker that nobody can use must not make all work free). An idle cluster has price 0, and only a request's own
    completion counts; near saturation the price is high, and the plan with the least total work wins.
    """

    def __init__(self) -> None:
        self.recent_s: FloatArray = np.zeros(0)
        """Per worker row, engine seconds dispatched, each weighted by exp(-age / window)."""
        self._arrivals = 0.0
        self._weight_s = 0.0
        self._at_s = 0.0

    def resize(self, num_rows: int) -> None:
        """Makes room; rows that exist stay."""
        self.recent_s = np.concatenate([self.recent_s, np.zeros(num_rows - len(self.recent_s))])

    def clear(self, row: int) -> None:
        self.recent_s[row] = 0.0

    def record_dispatch(self, row: int, engine_s: float, now_s: float) -> None:
        """O(rows), one array operation."""
        self._decay(now_s)
        self._arrivals += 1.0
        self.recent_s[row] += engine_s

    def price(self, backlog_s: FloatArray, now_s: float) -> float:
        """From the backlogs of all workers, in any order."""
        if not len(backlog_s):
            return 0.0
        low_s = float(np.sort(backlog_s)[len(backlog_s) // 4])
        if low_s <= 0.0:
            return 0.0
        self._decay(now_s)
        observed_s = max(_MIN_OBSERVED_S, self._weight_s) * len(backlog_s)
        utilisation = min(_MAX_UTILISATION, float(self.recent_s.sum()) / observed_s)
        return self._arrivals / observed_s * low_s / (1.0 - utilisation)

    def _decay(self, now_s: float) -> None:
        """Moves on to `now_s`; the weight is the decayed time since the first dispatch, which the sums are divided
        by."""
        if self._arrivals == 0.0:
            self._at_s = now_s
        elif now_s > self._at_s:
            decay = exp((self._at_s - now_s) / _WINDOW_S)
            self.recent_s *= decay
            self._arrivals *= decay
            self._weight_s = self._weight_s * decay + _WINDOW_S * (1.0 - decay)
            self._at_s = now_s
