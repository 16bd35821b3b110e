"""Measures one prompt under every condition against its full prefill."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nebula_bench.errors import BenchError
from nebula_bench.quality.divergence import common_tokens, kl_divergence
from nebula_bench.quality.engine import Answer, Call, Mode, QualityEngine
from nebula_bench.quality.outcome import ConditionOutcome, PromptOutcome
from nebula_bench.quality.prompts import QualityPrompt
from nebula_bench.quality.settings import QualitySettings
from nebula_protocol.fusion import Fusion, FusionMethod
from nebula_protocol.ids import Origin


@dataclass(frozen=True, slots=True)
class Condition:
    origin: Origin
    fusion: Fusion


def conditions_of(settings: QualitySettings, number: int) -> tuple[Condition, ...]:
    """Of a seed's prompt with this number; recomputing all is checked on some of them."""
    with_full = number % settings.full_every == 0
    return tuple(
        Condition(origin, fusion)
        for origin in Origin
        for fusion in settings.fusions
        if with_full or fusion.method is not FusionMethod.FULL
    )


def measure_prompt(prompt: QualityPrompt, engine: QualityEngine, settings: QualitySettings) -> PromptOutcome:
    """
    Raises:
        BenchError: the engine did not reuse what was there, so that the figures would say nothing.
    """
    shelves = {origin: f"{prompt.seed}/{prompt.number}/{origin}" for origin in Origin}
    engine.run(_lending(prompt, shelves[Origin.ALONE], shelves[Origin.IN_CONTEXT]))
    conditions = conditions_of(settings, prompt.number)
    truth = _answer_alone(engine, _full_prefill(prompt, settings))
    answers = _answers(prompt, conditions, shelves, engine, settings)
    return PromptOutcome(
        seed=prompt.seed,
        number=prompt.number,
        num_passages=len(prompt.passages),
        prompt_tokens=len(prompt.prompt.tokens),
        segment_tokens=prompt.prompt.segment_tokens,
        conditions=tuple(
            _compare(prompt, condition, truth, answer) for condition, answer in zip(conditions, answers, strict=True)
        ),
    )


def _answers(
    prompt: QualityPrompt,
    conditions: Sequence[Condition],
    shelves: Mapping[Origin, str],
    engine: QualityEngine,
    settings: QualitySettings,
) -> Sequence[Answer]:
    """In the order of the conditions. What must equal full prefill bit for bit runs by itself, as that does: beside
    others a prompt is computed in other pieces, which round otherwise. The rest shares its steps."""

    def call_of(condition: Condition) -> Call:
        return _asking(prompt, settings, shelves[condition.origin], condition.fusion)

    shared = [condition for condition in conditions if condition.fusion.method is not FusionMethod.FULL]
    found = dict(zip(shared, engine.run([call_of(condition) for condition in shared]), strict=True))
    for condition in conditions:
        if condition not in found:
            found[condition] = _answer_alone(engine, call_of(condition))
    return [found[condition] for condition in conditions]


def _answer_alone(engine: QualityEngine, call: Call) -> Answer:
    (answer,) = engine.run([call])
    return answer


def _lending(prompt: QualityPrompt, alone_shelf: str, in_context_shelf: str) -> Sequence[Call]:
    lender = prompt.lender
    return [
        *(Call(Mode.LEND_ALONE, tokens, ((0, len(tokens)),), alone_shelf) for tokens in dict.fromkeys(prompt.passages)),
        Call(Mode.LEND, lender.tokens, lender.spans, in_context_shelf),
    ]


def _full_prefill(prompt: QualityPrompt, settings: QualitySettings) -> Call:
    """In the two pieces in which reuse computes it: up to the end of the last segment, and the question. Products over
    other numbers of rows round otherwise, and a bfloat16 model shows it: that is no error of reuse."""
    asked = prompt.prompt
    return Call(Mode.EXACT, asked.tokens, num_tokens=settings.num_answer_tokens, first_piece_tokens=asked.spans[-1][1])


def _asking(prompt: QualityPrompt, settings: QualitySettings, shelf: str, fusion: Fusion) -> Call:
    asked = prompt.prompt
    return Call(Mode.REUSE, asked.tokens, asked.spans, shelf, fusion, settings.num_answer_tokens)


def _compare(prompt: QualityPrompt, condition: Condition, truth: Answer, answer: Answer) -> ConditionOutcome:
    wanted = prompt.prompt.segment_tokens
    if answer.reused_tokens != wanted:
        raise BenchError(
            f"prompt {prompt.seed}/{prompt.number}, {condition.origin}, {condition.fusion}: "
            f"{answer.reused_tokens} of {wanted} tokens were reused"
        )
    return ConditionOutcome(
        origin=condition.origin,
        fusion=str(condition.fusion),
        kl=kl_divergence(truth.logits, answer.logits),
        common_tokens=common_tokens(truth.token_ids, answer.token_ids),
        recomputed_ratio=answer.recomputed_tokens / wanted,
    )
