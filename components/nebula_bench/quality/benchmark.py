"""Runs the benchmark: what is not in the journal yet is measured."""

import hashlib
from collections.abc import Callable, Sequence

import msgspec

from nebula_bench.quality.engine import QualityEngine
from nebula_bench.quality.journal import Journal
from nebula_bench.quality.measurement import measure_prompt
from nebula_bench.quality.outcome import PromptOutcome
from nebula_bench.quality.prompts import QualityPrompt
from nebula_bench.quality.settings import QualitySettings

_NOT_OF_A_PROMPT = {"num_prompts", "seeds", "num_resamples", "model", "passages"}
"""Settings that change nothing of one prompt's outcome; folders may move."""


def journal_key(settings: QualitySettings, commit: str, model: bytes, passages: bytes) -> str:
    """Equal for runs whose outcomes may be joined: same code, model, texts and conditions."""
    relevant = settings.model_dump(mode="json", exclude=_NOT_OF_A_PROMPT)
    return hashlib.sha256(msgspec.json.encode([commit, relevant]) + model + passages).hexdigest()[:16]


def missing_prompts(prompts: Sequence[QualityPrompt], journal: Journal, limit: int | None) -> tuple[QualityPrompt, ...]:
    """Those without an outcome, at most `limit`, the seeds in turn so that a part of a run has all of them."""
    waiting = [prompt for prompt in prompts if (prompt.seed, prompt.number) not in journal.outcomes]
    return tuple(sorted(waiting, key=lambda prompt: prompt.number))[:limit]


def measure_prompts(
    prompts: Sequence[QualityPrompt],
    engine: QualityEngine,
    journal: Journal,
    settings: QualitySettings,
    on_finished: Callable[[PromptOutcome], None],
) -> None:
    """
    Raises:
        BenchError: the engine did not reuse what was there.
        ResultsError: the journal cannot be written.
    """
    for prompt in prompts:
        outcome = measure_prompt(prompt, engine, settings)
        journal.append(outcome)
        on_finished(outcome)
