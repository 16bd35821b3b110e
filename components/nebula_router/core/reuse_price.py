"""What reuse saves: the costs that prefix blocks and segments are weighed with."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from nebula_protocol.ids import Role
from nebula_router.core.worker_profile import WorkerProfile


@dataclass(frozen=True, slots=True)
class ReusePrice:
    """Marginal times of the fleet's mean worker."""

    per_token_s: float
    per_pair_s: float
    load_s_per_token: float
    recompute_tokens: int
    """Leading tokens of each reused segment that are computed again."""
    reused_ratio: float
    """Share of its other tokens that is not computed again, a fusion's probe counted."""

    @classmethod
    def of(cls, profiles: Sequence[WorkerProfile]) -> Self | None:
        """None without prefill workers."""
        cards = [profile.card for profile in profiles if profile.card.role is Role.PREFILL]
        if not cards:
            return None
        return cls(
            per_token_s=fmean(card.step_cost.per_token_s for card in cards),
            per_pair_s=fmean(card.step_cost.per_pair_s for card in cards),
            load_s_per_token=fmean(card.load_s_per_token for card in cards),
            recompute_tokens=round(fmean(card.fusion.leading_tokens for card in cards)),
            reused_ratio=fmean(card.fusion.spared_ratio(card.num_layers) * card.pic for card in cards),
        )

    def compute_s(self, start: int, end: int) -> float:
        """Time to compute tokens [start, end) of a prompt behind all that comes before them."""
        return (end - start) * (self.per_token_s + (start + end) * 0.5 * self.per_pair_s)

    def segment_s(self, start: int, end: int) -> float:
        """What loading these tokens of a segment saves; 0 where computing is no slower."""
        saved_s = self.compute_s(start, end) * self.reused_ratio - (end - start) * self.load_s_per_token
        return max(0.0, saved_s)
