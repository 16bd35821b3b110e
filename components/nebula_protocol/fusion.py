"""How a worker fits reused segments into their new context: which of their tokens it computes again."""

import math
import re
from enum import StrEnum
from typing import Final

import msgspec

from nebula_protocol.errors import FusionError

MAX_LEADING_TOKENS: Final = 65_536
DEFAULT_LEADING_TOKENS: Final = 16
DEFAULT_RATIO: Final = 0.15
PROBE_LAYERS: Final = 2
"""CacheBlend computes this many of the model's first layers for all reused tokens, to see whose KV deviates most."""
FUSION_FORMS: Final = "legolink:16 (leading tokens), cacheblend:0.15 (share over 0, up to 1), none or full"

_SHOWN_CHARS: Final = 40
# Finer shares are rounded, so that a share and its text are the same.
_RATIO_DIGITS: Final = 4
_TEXT: Final = re.compile(r"(?P<method>[a-z]{1,16})(?::(?P<amount>[0-9.]{1,16}))?")


class FusionMethod(StrEnum):
    LEGOLINK = "legolink"
    """The leading tokens of each reused segment. EPIC, https://arxiv.org/abs/2410.15332."""
    CACHEBLEND = "cacheblend"
    """A share of all reused tokens, those whose KV deviates most. CacheBlend, https://arxiv.org/abs/2405.16444."""
    NONE = "none"
    """Nothing: keys are rotated to their new positions, no more."""
    FULL = "full"
    """Every reused token: the answer of full prefill, at its cost. For checks."""


class Fusion(msgspec.Struct, frozen=True):
    """A method with its amount. Make it with `legolink`, `cacheblend` or `parse_fusion`, or take a constant."""

    method: FusionMethod
    leading_tokens: int = 0
    """LegoLink's k, of each segment; 0 for other methods."""
    ratio: float = 0.0
    """Share of the reused tokens: CacheBlend's, 1 where all are computed again, 0 for other methods."""

    @property
    def needs_probe(self) -> bool:
        """Whether the first `PROBE_LAYERS` layers run over all reused tokens, to choose among them."""
        return self.method is FusionMethod.CACHEBLEND

    def recomputed_tokens(self, num_tokens: int) -> int:
        """Of a reused segment's `num_tokens`, how many are computed again; a share is rounded up."""
        # Rounded first: 0.15 * 20 is a hair over 3 in binary.
        share = math.ceil(round(self.ratio * num_tokens, 6))
        return min(num_tokens, max(self.leading_tokens, share))

    def probe_ratio(self, num_layers: int) -> float:
        """What the probe costs, as a share of computing all reused tokens in full."""
        return PROBE_LAYERS / num_layers if self.needs_probe else 0.0

    def spared_ratio(self, num_layers: int) -> float:
        """Share of the compute of reused tokens, the leading ones apart, that the engine is spared."""
        return max(0.0, 1.0 - self.ratio - self.probe_ratio(num_layers))

    def __str__(self) -> str:
        """The form that `parse_fusion` reads."""
        match self.method:
            case FusionMethod.LEGOLINK:
                return f"{self.method}:{self.leading_tokens}"
            case FusionMethod.CACHEBLEND:
                return f"{self.method}:{self.ratio:g}"
            case FusionMethod.NONE | FusionMethod.FULL:
                return str(self.method)


NO_FUSION: Final = Fusion(FusionMethod.NONE)
FULL_FUSION: Final = Fusion(FusionMethod.FULL, ratio=1.0)


def legolink(leading_tokens: int = DEFAULT_LEADING_TOKENS) -> Fusion:
    """
    Raises:
        FusionError: not 0 to `MAX_LEADING_TOKENS`.
    """
    if not 0 <= leading_tokens <= MAX_LEADING_TOKENS:
        raise FusionError(f"legolink takes 0 to {MAX_LEADING_TOKENS} leading tokens, not {leading_tokens}")
    return Fusion(FusionMethod.LEGOLINK, leading_tokens=leading_tokens)


def cacheblend(ratio: float = DEFAULT_RATIO) -> Fusion:
    """
    Raises:
        FusionError: not over 0 and up to 1.
    """
    share = round(ratio, _RATIO_DIGITS)
    if not 0 < share <= 1:
        raise FusionError(f"cacheblend takes a share over 0 and up to 1, not {ratio:g}")
    return Fusion(FusionMethod.CACHEBLEND, ratio=share)


def parse_fusion(text: str) -> Fusion:
    """A fusion from its text, as in `FUSION_FORMS`; a method without its amount has the default one.

    Raises:
        FusionError: the text has another form, or its amount is out of bounds.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise _malformed(text)
    method, amount = found["method"], found["amount"]
    try:
        match method:
            case FusionMethod.LEGOLINK:
                return legolink(DEFAULT_LEADING_TOKENS if amount is None else int(amount))
            case FusionMethod.CACHEBLEND:
                return cacheblend(DEFAULT_RATIO if amount is None else float(amount))
            case FusionMethod.NONE if amount is None:
                return NO_FUSION
            case FusionMethod.FULL if amount is None:
                return FULL_FUSION
    except ValueError as error:
        raise _malformed(text) from error
    raise _malformed(text)


def _malformed(text: str) -> FusionError:
    shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
    return FusionError(f"{shown!r} is no fusion; the forms are {FUSION_FORMS}")
