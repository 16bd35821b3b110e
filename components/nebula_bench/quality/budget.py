"""Fusion methods at equal shares of recomputed tokens, between the amounts that were measured."""

from collections.abc import Sequence

import numpy as np

from nebula_bench.quality.summary import ConditionSummary, QualitySummary
from nebula_protocol.fusion import FusionMethod, parse_fusion
from nebula_protocol.ids import Origin

COMPARED_METHODS = (FusionMethod.LEGOLINK, FusionMethod.CACHEBLEND)


def method_line(summary: QualitySummary, method: FusionMethod, origin: Origin) -> list[ConditionSummary]:
    """From nothing recomputed to the method's largest amount. Recomputing all has no place in it."""
    wanted = {method, FusionMethod.NONE}
    found = [one for one in summary.conditions if one.origin is origin and parse_fusion(one.fusion).method in wanted]
    return sorted(found, key=lambda one: one.recomputed_ratio)


def kl_at(line: Sequence[ConditionSummary], recomputed_ratio: float) -> float | None:
    """Mean KL on the straight line between the two nearest amounts; None outside of what was measured."""
    if not line or not line[0].recomputed_ratio <= recomputed_ratio <= line[-1].recomputed_ratio:
        return None
    shares = [one.recomputed_ratio for one in line]
    return float(np.interp(recomputed_ratio, shares, [one.kl.value for one in line]))
