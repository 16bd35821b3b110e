"""Prompts of real passages, each with another arrangement of the same passages that can lend it KV."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nebula_bench.errors import BenchError
from nebula_bench.quality.passages import Passage
from nebula_bench.quality.settings import QualitySettings

Tokens = tuple[int, ...]

_SEAM = "\n\n"
_QUESTIONS = (
    'What does the document that begins with "{quote}" say? Answer in one sentence.',
    'Use the documents to explain to a friend what "{quote}" is about.',
    'Which facts does the text after "{quote}" give? Name the most important one.',
    'Write the words that follow "{quote}" in the documents.',
)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A prompt's tokens, and where its passages stand in them: [start, end), ascending and disjoint."""

    tokens: Tokens
    spans: tuple[tuple[int, int], ...]

    @property
    def segment_tokens(self) -> int:
        return sum(end - start for start, end in self.spans)


@dataclass(frozen=True, slots=True)
class QualityPrompt:
    seed: int
    number: int
    """Among the prompts of the seed."""
    prompt: Arrangement
    lender: Arrangement
    """The same passages, none at its place, and another question."""
    passages: tuple[Tokens, ...]
    """Those of the prompt, in its order."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What the model's chat template puts around a user's text."""

    before: str
    after: str


def make_prompts(
    settings: QualitySettings, passages: Sequence[Passage], frame: Frame, encode: Callable[[str], Sequence[int]]
) -> tuple[QualityPrompt, ...]:
    """All prompts, seed by seed. Equal settings and passages give equal prompts; more prompts keep the first ones.

    Raises:
        BenchError: there are fewer passages than a prompt may need.
    """
    if len(passages) < settings.max_passages:
        raise BenchError(
            f"only {len(passages)} passages have {settings.min_segment_tokens} tokens; "
            f"a prompt may have {settings.max_passages}"
        )
    writer = _Writer(frame, encode)
    return tuple(
        _draw(settings, passages, writer, seed, number)
        for seed in settings.seeds
        for number in range(settings.prompts_per_seed)
    )


def _draw(
    settings: QualitySettings, passages: Sequence[Passage], writer: "_Writer", seed: int, number: int
) -> QualityPrompt:
    chance = random.Random(f"{seed}/{number}")
    count = chance.randint(settings.min_passages, settings.max_passages)
    chosen = [_cut(settings, passage, chance) for passage in chance.sample(passages, count)]
    question, other_question = chance.sample(_QUESTIONS, 2)
    asked, other_asked = chance.sample(chosen, 2)
    return QualityPrompt(
        seed=seed,
        number=number,
        prompt=writer.arrange(chosen, question.format(quote=asked.quote)),
        lender=writer.arrange(_derange(chosen, chance), other_question.format(quote=other_asked.quote)),
        passages=tuple(passage.tokens for passage in chosen),
    )


def _cut(settings: QualitySettings, passage: Passage, chance: random.Random) -> Passage:
    """Its beginning, of a length that is log-uniform between the bounds."""
    low, high = math.log(settings.min_segment_tokens), math.log(settings.max_segment_tokens)
    length = round(math.exp(chance.uniform(low, high)))
    return Passage(passage.id, passage.tokens[:length], passage.quote)


def _derange(passages: Sequence[Passage], chance: random.Random) -> list[Passage]:
    """Another order in which none keeps its place. One order in e is so, hence a few tries."""
    while True:
        order = chance.sample(range(len(passages)), len(passages))
        if all(place != index for place, index in enumerate(order)):
            return [passages[index] for index in order]


class _Writer:
    """Each part is tokenized by itself, so that a passage has the same tokens wherever it stands."""

    def __init__(self, frame: Frame, encode: Callable[[str], Sequence[int]]) -> None:
        self._encode = encode
        self._before = tuple(encode(frame.before))
        self._seam = tuple(encode(_SEAM))
        self._after = frame.after

    def arrange(self, passages: Sequence[Passage], question: str) -> Arrangement:
        tokens = list(self._before)
        spans = []
        for passage in passages:
            spans.append((len(tokens), len(tokens) + len(passage.tokens)))
            tokens += passage.tokens
            tokens += self._seam
        tokens += self._encode(question + self._after)
        return Arrangement(tuple(tokens), tuple(spans))
