"""What an answer tells of the distribution of its next token."""

import math
from collections.abc import Mapping

TopTokens = Mapping[str, float]
"""Natural logarithms of the probabilities of the likeliest tokens, by token."""


def divergence_nats(reference: TopTokens, other: TopTokens) -> float:
    """How much `other` differs from `reference`: the Kullback-Leibler divergence over the tokens that both tell of and
    all the rest as one. At most that of the whole distributions; exactly 0 where both tell the same."""
    shared = reference.keys() & other.keys()
    told = math.fsum(math.exp(reference[token]) * (reference[token] - other[token]) for token in shared)
    return told + _rest_nats(_rest(reference, shared), _rest(other, shared))


def _rest(top: TopTokens, tokens: set[str]) -> float:
    return 1.0 - math.fsum(math.exp(top[token]) for token in tokens)


def _rest_nats(reference: float, other: float) -> float:
    """Of the rest; nothing where rounding has left none of it."""
    return reference * math.log(reference / other) if reference > 0.0 < other else 0.0
