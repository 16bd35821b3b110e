"""The truth about step times: the calibrated table, and chance that nobody can know beforehand."""

import random
from dataclasses import dataclass

from pic_worker.core.step_cost import StepCost


class StepNoise:
    """Seeded factors of one worker. The driver draws before each step that it asks the engine for.

    Between steps the factor is the worker's mean, which is what the worker itself expects when it judges a fetch.
    """

    def __init__(self, seed: int, worker: int, *, worker_ratio: float, step_ratio: float) -> None:
        # Text seeds give the same stream in every version and process.
        self._random = random.Random(f"{seed}/{worker}")
        self._step_ratio = step_ratio
        self._mean = self._random.lognormvariate(0.0, worker_ratio)
        self.factor = self._mean

    def draw(self) -> None:
        """For the step that is about to be formed."""
        self.factor = self._mean * self._random.lognormvariate(0.0, self._step_ratio)

    def rest(self) -> None:
        """The step is formed."""
        self.factor = self._mean


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyStepCost(StepCost):
    """A worker's step cost, times its noise's present factor."""

    noise: StepNoise

    def step_s(self, num_tokens: int, attention_pairs: float) -> float:
        # `super()` finds no class in a dataclass with slots.
        return StepCost.step_s(self, num_tokens, attention_pairs) * self.noise.factor
