"""What a cache found over a whole workload."""

import msgspec


class Outcome(msgspec.Struct, frozen=True):
    """Shares of a workload's prompt tokens, and of the prefill time that it takes without any reuse."""

    prefix_ratio: float | None
    """The store's share for prefix blocks in the end; None where there is none."""
    prefix_hit_ratio: float
    segment_hit_ratio: float
    saved_ratio: float

    @property
    def hit_ratio(self) -> float:
        return self.prefix_hit_ratio + self.segment_hit_ratio
