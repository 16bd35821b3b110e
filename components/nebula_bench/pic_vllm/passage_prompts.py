"""Prompts of real passages with marked segments, none with the beginning of another."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from nebula_bench.errors import BenchError
from nebula_bench.span_annotation import spans_annotation

_BEGIN = "Request {number}. Read these texts.\n"
_SEAM = "\n\n"
_END = "\n\nWhat do the texts say? In a few words:"
_LONGEST_FRAME = 64
"""Tokens around the passages, at most."""

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MarkedPrompt:
    tokens: Tokens
    spans: tuple[tuple[int, int], ...]

    @property
    def segment_tokens(self) -> int:
        return sum(end - start for start, end in self.spans)

    def body(self, model: str, *annotations: str, max_tokens: int) -> bytes:
        """For `/v1/completions`, streamed, with the receipt."""
        return msgspec.json.encode(
            {
                "model": model,
                "prompt": self.tokens,
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "nvext": {
                    "annotations": [spans_annotation(self.spans), *annotations],
                    "extra_fields": ["engine_data"],
                },
            }
        )


class PassagePrompts:
    """Cuts the texts into passages of equal length, and hands each out once."""

    def __init__(
        self,
        texts: Sequence[Sequence[int]],
        encode: Callable[[str], Sequence[int]],
        *,
        prompt_tokens: int,
        num_passages: int,
    ) -> None:
        """
        Args:
            texts: Token ids of each text.
            encode: Adds no tokens of its own.
            prompt_tokens: Of each prompt, up to the few that the division leaves over.
            num_passages: Of each prompt.
        """
        self._encode = encode
        self._num_passages = num_passages
        self._passage_tokens = (prompt_tokens - _LONGEST_FRAME) // num_passages - len(encode(_SEAM))
        self._stream: Iterator[int] = itertools.chain.from_iterable(texts)
        self._numbers = itertools.count(1)
        self._chance = random.Random(0)

    def fresh_passages(self) -> tuple[Tokens, ...]:
        """For one prompt.

        Raises:
            BenchError: the texts are used up.
        """
        passages = tuple(tuple(itertools.islice(self._stream, self._passage_tokens)) for _ in range(self._num_passages))
        if len(passages[-1]) < self._passage_tokens:
            raise BenchError("the passages are used up: measure fewer repeats, or give more texts")
        return passages

    def arrange(self, passages: Sequence[Tokens]) -> MarkedPrompt:
        """In a random order, behind a number that no other prompt has."""
        tokens = list(self._encode(_BEGIN.format(number=next(self._numbers))))
        spans = []
        for passage in self._chance.sample(passages, len(passages)):
            spans.append((len(tokens), len(tokens) + len(passage)))
            tokens += passage
            tokens += self._encode(_SEAM)
        return MarkedPrompt((*tokens, *self._encode(_END)), tuple(spans))
