"""How far measured step times are from a worker's own closed form, learnt from receipts."""

import math

from nebula_protocol.cost import CostFit
from nebula_protocol.ids import WorkerWithDpRank
from nebula_protocol.receipt import StepWork

MIN_FACTOR = 0.25
MAX_FACTOR = 4.0

# Steps of one size scatter by a few percent around their mean, the closed form by 6 to 21 % around the sizes.
_FLOOR_WEIGHT = 0.05
# No single receipt moves the estimate by more than its weight times this, as a logarithm: a factor of 1.5.
_MAX_SURPRISE = math.log(1.5)


class CostCalibration:
    """A factor per worker, 1.0 until the first receipt.

    Works on logarithms, so that a step twice as long and one half as long cancel. The first receipts weigh 1/2, 1/3,
    ... as in a mean with the card's fit as first sample, later ones 1/20. Surprises are clipped (Huber), so one
    stalled step does not count as a slow worker, while a worker that is really slow is believed within a few receipts.
    """

    def __init__(self) -> None:
        self._log_factors: dict[WorkerWithDpRank, float] = {}
        self._num_receipts: dict[WorkerWithDpRank, int] = {}

    def add_worker(self, worker: WorkerWithDpRank, factor: float) -> None:
        """Starts a worker, or starts it anew, from a factor that is already known (1.0 where none is)."""
        self._log_factors[worker] = _bounded(math.log(factor))
        self._num_receipts[worker] = 0

    def factor(self, worker: WorkerWithDpRank) -> float:
        return math.exp(self._log_factors.get(worker, 0.0))

    def record_steps(self, worker: WorkerWithDpRank, work: StepWork, fit: CostFit) -> float:
        """Learns from the steps that carried one request; returns the new factor. Steps without time teach nothing."""
        expected_s = fit.step_s * work.num_steps + fit.per_token_s * work.step_tokens + fit.per_pair_s * work.step_pairs
        if work.step_s <= 0 or expected_s <= 0 or not math.isfinite(work.step_s / expected_s):
            return self.factor(worker)
        num_receipts = self._num_receipts.get(worker, 0)
        self._num_receipts[worker] = num_receipts + 1
        log_factor = self._log_factors.get(worker, 0.0)
        surprise = math.log(work.step_s / expected_s) - log_factor
        clipped = max(-_MAX_SURPRISE, min(_MAX_SURPRISE, surprise))
        log_factor += max(_FLOOR_WEIGHT, 1 / (num_receipts + 2)) * clipped
        self._log_factors[worker] = _bounded(log_factor)
        return self.factor(worker)

    def remove_worker(self, worker: WorkerWithDpRank) -> None:
        self._log_factors.pop(worker, None)
        self._num_receipts.pop(worker, None)


def _bounded(log_factor: float) -> float:
    return max(math.log(MIN_FACTOR), min(math.log(MAX_FACTOR), log_factor))
