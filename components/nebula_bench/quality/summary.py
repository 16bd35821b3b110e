"""All prompts together: each condition with its intervals, and the two origins side by side."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, median

import msgspec

from nebula_bench.errors import BenchError
from nebula_bench.quality.interval import Interval, mean_interval, ratio_interval
from nebula_bench.quality.outcome import ConditionOutcome, PromptOutcome
from nebula_bench.quality.settings import QualitySettings
from nebula_protocol.ids import Origin


class ConditionSummary(msgspec.Struct, frozen=True, kw_only=True):
    origin: Origin
    fusion: str
    num_prompts: int
    kl: Interval
    """Of the first answer token, mean over the prompts, in nats."""
    kl_median: float
    kl_max: float
    kl_by_seed: dict[int, float]
    agreement: Interval
    """Share of the greedy tokens that come before the first difference."""
    first_token_agreement: float
    """Share of the prompts whose first token is that of full prefill."""
    recomputed_ratio: float
    """Of the reused tokens, mean."""


class OriginRatio(msgspec.Struct, frozen=True, kw_only=True):
    """How many times farther from full prefill KV computed alone is than KV computed in another context."""

    fusion: str
    kl_ratio: Interval


class QualitySummary(msgspec.Struct, frozen=True, kw_only=True):
    num_prompts: int
    seeds: tuple[int, ...]
    num_answer_tokens: int
    mean_prompt_tokens: float
    mean_segment_tokens: float
    mean_passages: float
    conditions: tuple[ConditionSummary, ...]
    origin_ratios: tuple[OriginRatio, ...]

    def find(self, origin: Origin, fusion: str) -> ConditionSummary | None:
        return next((one for one in self.conditions if (one.origin, one.fusion) == (origin, fusion)), None)


_Measured = Sequence[tuple[int, ConditionOutcome]]
"""One condition on every prompt, with the prompt's seed."""


def summarize_quality(outcomes: Sequence[PromptOutcome], settings: QualitySettings) -> QualitySummary:
    """
    Raises:
        BenchError: there are no outcomes.
    """
    if not outcomes:
        raise BenchError("no prompt was measured")
    measured: dict[tuple[Origin, str], list[tuple[int, ConditionOutcome]]] = defaultdict(list)
    for outcome in outcomes:
        for condition in outcome.conditions:
            measured[condition.origin, condition.fusion].append((outcome.seed, condition))
    return QualitySummary(
        num_prompts=len(outcomes),
        seeds=tuple(sorted({outcome.seed for outcome in outcomes})),
        num_answer_tokens=settings.num_answer_tokens,
        mean_prompt_tokens=fmean(outcome.prompt_tokens for outcome in outcomes),
        mean_segment_tokens=sum(one.segment_tokens for one in outcomes) / sum(one.num_passages for one in outcomes),
        mean_passages=fmean(outcome.num_passages for outcome in outcomes),
        conditions=tuple(_summarize(condition, settings) for condition in measured.values()),
        origin_ratios=tuple(_origin_ratios(measured, settings.num_resamples)),
    )


def _summarize(measured: _Measured, settings: QualitySettings) -> ConditionSummary:
    first = measured[0][1]
    kls = [one.kl for _, one in measured]
    by_seed: dict[int, list[float]] = defaultdict(list)
    for seed, one in measured:
        by_seed[seed].append(one.kl)
    shares = [one.common_tokens / settings.num_answer_tokens for _, one in measured]
    return ConditionSummary(
        origin=first.origin,
        fusion=first.fusion,
        num_prompts=len(measured),
        kl=mean_interval(kls, settings.num_resamples),
        kl_median=median(kls),
        kl_max=max(kls),
        kl_by_seed={seed: fmean(values) for seed, values in sorted(by_seed.items())},
        agreement=mean_interval(shares, settings.num_resamples),
        first_token_agreement=fmean(one.common_tokens > 0 for _, one in measured),
        recomputed_ratio=fmean(one.recomputed_ratio for _, one in measured),
    )


def _origin_ratios(measured: Mapping[tuple[Origin, str], _Measured], num_resamples: int) -> list[OriginRatio]:
    ratios = []
    for (origin, fusion), alone in measured.items():
        in_context = measured.get((Origin.IN_CONTEXT, fusion), ())
        if origin is not Origin.ALONE or len(alone) != len(in_context):
            continue
        ratio = ratio_interval([one.kl for _, one in alone], [one.kl for _, one in in_context], num_resamples)
        if ratio is not None:
            ratios.append(OriginRatio(fusion=fusion, kl_ratio=ratio))
    return ratios
