"""What became of one request of a run."""

from dataclasses import dataclass, field

from nebula_bench.policies.policy import Placement
from nebula_protocol.receipt import Receipt


@dataclass(slots=True)
class Outcome:
    """Fills on the request's way. Times are from the start of the run."""

    position: int
    """In the order of arrival, from 0."""
    arrived_at_s: float
    decided_at_s: float = 0.0
    """Of the last attempt."""
    first_token_at_s: float | None = None
    """None until there is one, and for ever where the request failed."""
    num_attempts: int = 0
    placement: Placement | None = None
    receipt: Receipt | None = None
    helper_receipts: list[Receipt] = field(default_factory=list)
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_token_at_s is None else self.first_token_at_s - self.arrived_at_s
