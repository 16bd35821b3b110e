"""What a dispatched request will ask of an engine."""

from dataclasses import dataclass
from math import ceil

from nebula_protocol.cost import CostFit


@dataclass(frozen=True, slots=True)
class QueuedWork:
    """The engine's share of one request (or of one helper task)."""

    step_tokens: int
    """Tokens that go through the model: gaps, missing segments, recomputed tokens, the query."""
    attention_pairs: float
    load_s: float = 0.0
    """Time to bring reused KV into the device tier."""

    def marginal_s(self, cost: CostFit, cost_factor: float) -> float:
        """Time that it adds to steps that run anyway."""
        compute_s = cost.per_token_s * self.step_tokens + cost.per_pair_s * self.attention_pairs
        return cost_factor * compute_s + self.load_s


def whole_tokens(num_tokens: float) -> int:
    """Rounded up, but for what floats add by rounding: estimates count shares of tokens, engines whole ones."""
    return ceil(num_tokens - 1e-6)
