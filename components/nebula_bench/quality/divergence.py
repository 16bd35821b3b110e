"""How far two answers are apart."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nebula_bench.quality.engine import Logits


def kl_divergence(truth: Logits, other: Logits) -> float:
    """KL(truth || other) of the two distributions over the whole vocabulary, in nats."""
    truth_log, other_log = _log_softmax(truth), _log_softmax(other)
    # Rounding can leave equal distributions a hair under zero.
    return max(0.0, float(np.sum(np.exp(truth_log) * (truth_log - other_log))))


def common_tokens(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two answers have in common before they part."""
    pairs = zip(first, second, strict=True)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), len(first))


def _log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - float(logits.max())
    result: npt.NDArray[np.float64] = shifted - np.log(np.sum(np.exp(shifted)))
    return result
