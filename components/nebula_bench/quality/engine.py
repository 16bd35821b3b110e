"""What the benchmark needs of an engine."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import numpy as np
import numpy.typing as npt

from nebula_protocol.fusion import NO_FUSION, Fusion

Logits = npt.NDArray[np.float32]
"""Of the first answer token, shape [vocabulary]."""

Spans = tuple[tuple[int, int], ...]


class Mode(Enum):
    EXACT = auto()
    """Full prefill: nothing is reused or kept."""
    LEND = auto()
    """Full prefill; the segments are kept as they were computed in this context."""
    LEND_ALONE = auto()
    """The prompt is one segment by itself, and is kept."""
    REUSE = auto()
    """All segments come from the shelf."""


@dataclass(frozen=True, slots=True)
class Call:
    mode: Mode
    tokens: tuple[int, ...]
    spans: Spans = ()
    shelf: str = ""
    """Segments are found again under the same name only."""
    fusion: Fusion = NO_FUSION
    num_tokens: int = 1
    """Greedy answer tokens, never fewer."""
    first_piece_tokens: int | None = None
    """EXACT, and by itself: compute so many tokens in a step of their own; None: all in one."""


@dataclass(frozen=True, slots=True)
class Answer:
    token_ids: tuple[int, ...]
    logits: Logits
    reused_tokens: int = 0
    """Tokens of segments that came from the shelf, the recomputed ones among them."""
    recomputed_tokens: int = 0


class QualityEngine(Protocol):
    def run(self, calls: Sequence[Call]) -> list[Answer]:
        """Answers in the order of the calls, which run side by side. No call sees another's prefix blocks."""
        ...
