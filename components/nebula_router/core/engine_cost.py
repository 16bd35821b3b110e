"""The fleet's costs under the factors that receipts taught."""

from dataclasses import dataclass
from typing import Self

from nebula_router.core.fleet import Fleet
from nebula_router.core.load_snapshot import FloatArray


@dataclass(frozen=True, slots=True)
class EngineCosts:
    """Shape [W]."""

    step_s: FloatArray
    per_token_s: FloatArray
    per_pair_s: FloatArray
    load_s_per_token: FloatArray
    net_s_per_token: FloatArray
    """Computing a token, attention apart, instead of loading it."""

    @classmethod
    def of(cls, fleet: Fleet, cost_factor: FloatArray) -> Self:
        per_token_s = fleet.per_token_s * cost_factor
        return cls(
            step_s=fleet.step_s * cost_factor,
            per_token_s=per_token_s,
            per_pair_s=fleet.per_pair_s * cost_factor,
            load_s_per_token=fleet.load_s_per_token,
            net_s_per_token=per_token_s - fleet.load_s_per_token,
        )
