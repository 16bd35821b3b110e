"""Prompts of seeded passages, some of them segments."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


def passage(seed: int, num_tokens: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(10, 500) for _ in range(num_tokens)]


@dataclass(frozen=True)
class Prompt:
    """Parts one behind another."""

    tokens: list[int]
    spans: list[tuple[int, int]]
    """Of the segments."""

    @classmethod
    def of(cls, *parts: Sequence[int], gaps: Sequence[int] = ()) -> Self:
        """
        Args:
            gaps: indices of parts that are no segments.
        """
        tokens: list[int] = []
        spans: list[tuple[int, int]] = []
        for index, part in enumerate(parts):
            if index not in gaps:
                spans.append((len(tokens), len(tokens) + len(part)))
            tokens += part
        return cls(tokens, spans)
