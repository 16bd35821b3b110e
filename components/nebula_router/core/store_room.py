"""How much KV the fleet has room for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from nebula_protocol.ids import Role
from nebula_router.core.worker_profile import WorkerProfile


@dataclass(frozen=True, slots=True)
class StoreRoom:
    """Tokens, over all prefill workers."""

    store_tokens: float
    """Of the stores that both classes share."""
    device_tokens: float
    """In the engines' own caches, which hold prefix blocks only."""

    @classmethod
    def of(cls, profiles: Sequence[WorkerProfile]) -> Self:
        cards = [profile.card for profile in profiles if profile.card.role is Role.PREFILL]
        return cls(
            store_tokens=float(sum(card.store_capacity_tokens for card in cards)),
            device_tokens=float(sum(card.device_capacity_tokens for card in cards)),
        )

    def prefix_tokens(self, prefix_ratio: float, *, wanted_by_segments: float) -> float:
        """What blocks have: besides their share and the device tier, what segments leave of theirs."""
        return self.device_tokens + self.store_tokens - min(self.store_tokens * (1 - prefix_ratio), wanted_by_segments)

    def segment_tokens(self, prefix_ratio: float, *, wanted_by_prefix: float) -> float:
        """What segments have: besides their share, what blocks that do not fit the device tier leave of theirs."""
        in_store = max(0.0, wanted_by_prefix - self.device_tokens)
        return self.store_tokens - min(self.store_tokens * prefix_ratio, in_store)
