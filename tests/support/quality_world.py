"""An engine without a model: answers are made of the prompt's sum, and reuse errs by a known amount."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nebula_bench.quality.engine import Answer, Call, Logits, Mode
from nebula_bench.quality.passages import Passage
from nebula_bench.quality.prompts import Frame, QualityPrompt, make_prompts
from nebula_bench.quality.settings import QualitySettings

VOCABULARY = 16
FRAME = Frame("<s>", "</s>")


def encode(text: str) -> list[int]:
    """A token a character."""
    return [ord(letter) for letter in text]


def passages(count: int, num_tokens: int = 60) -> list[Passage]:
    return [
        Passage(f"p{index}", tuple(range(1000 * index, 1000 * index + num_tokens)), f"q{index}")
        for index in range(count)
    ]


def settings(**changes: object) -> QualitySettings:
    values: dict[str, object] = {
        "model": Path("model"),
        "passages": Path("passages.jsonl.gz"),
        "num_prompts": 6,
        "seeds": (1, 2),
        "max_passages": 4,
        "min_segment_tokens": 16,
        "max_segment_tokens": 48,
        "num_answer_tokens": 4,
        "num_resamples": 200,
    }
    return QualitySettings.model_validate(values | changes)


def prompts(chosen: QualitySettings) -> tuple[QualityPrompt, ...]:
    return make_prompts(chosen, passages(12), FRAME, encode)


class ShelfEngine:
    """Keeps whose segments were lent on which shelf.

    Reuse makes token 1 likelier by `error` times the share that is not computed again; alone by twice as much.
    """

    def __init__(self, error: float = 0.5) -> None:
        self._error = error
        self._shelves: dict[str, dict[tuple[int, ...], float]] = {}
        self.num_calls = 0

    def run(self, calls: Sequence[Call]) -> list[Answer]:
        self.num_calls += len(calls)
        return [self._answer(call) for call in calls]

    def _answer(self, call: Call) -> Answer:
        shelf = self._shelves.setdefault(call.shelf, {})
        segments = [call.tokens[start:end] for start, end in call.spans]
        reused = recomputed = 0
        error = 0.0
        match call.mode:
            case Mode.LEND | Mode.LEND_ALONE:
                shelf |= dict.fromkeys(segments, 2.0 if call.mode is Mode.LEND_ALONE else 1.0)
            case Mode.REUSE:
                found = [segment for segment in segments if segment in shelf]
                reused = sum(map(len, found))
                recomputed = sum(call.fusion.recomputed_tokens(len(segment)) for segment in found)
                share_left = 1 - recomputed / max(1, reused)
                error = self._error * share_left * sum(shelf[segment] for segment in found) / max(1, len(found))
        logits = _logits(call.tokens, error)
        tokens = (int(logits.argmax()), *[int(error > 0.6)] * (call.num_tokens - 1))
        return Answer(tokens, logits, reused, recomputed)


def _logits(tokens: Sequence[int], error: float) -> Logits:
    logits = np.zeros(VOCABULARY, dtype=np.float32)
    logits[2 + sum(tokens) % (VOCABULARY - 2)] = 3.0
    logits[1] += error
    return logits
