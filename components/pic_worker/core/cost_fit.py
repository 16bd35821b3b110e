"""What a step costs, from a few that were measured."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from nebula_protocol.cost import CostFit, attention_pairs

_SMALLEST: Final = 1e-9
"""No engine is so fast; a router divides by it."""


def fit_step_cost(sizes_tokens: Sequence[int], times_s: Sequence[float]) -> CostFit:
    """Least squares of `step + a * tokens + b * pairs` over single prefills, without negative terms."""
    tokens = np.array(sizes_tokens, dtype=np.float64)
    columns = np.stack([np.ones_like(tokens), tokens, np.array([attention_pairs(n, 0) for n in sizes_tokens])], axis=1)
    times = np.array(times_s, dtype=np.float64)
    kept = [0, 1, 2]
    while True:
        terms, *_ = np.linalg.lstsq(columns[:, kept], times, rcond=None)
        if terms.min() >= 0 or len(kept) == 1:
            break
        # The most negative one is noise: what is left explains the times better than with a term of the wrong sign.
        kept.pop(int(terms.argmin()))
    fitted = dict(zip(kept, terms.tolist(), strict=True))
    return CostFit(
        step_s=max(fitted.get(0, 0.0), 0.0),
        per_token_s=max(fitted.get(1, 0.0), _SMALLEST),
        per_pair_s=max(fitted.get(2, 0.0), 0.0),
    )
