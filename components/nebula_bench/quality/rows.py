"""Rows of the results file, with the bars that quality is held to."""

from collections.abc import Iterator

from nebula_bench.quality.summary import ConditionSummary, QualitySummary
from nebula_bench.results import Bar, Measurement
from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, Fusion, cacheblend, legolink
from nebula_protocol.ids import Origin

DEFAULT_ORIGIN = Origin.IN_CONTEXT
_MAX_KL_LEGOLINK = 0.08
_MAX_KL_CACHEBLEND = 0.06


def quality_rows(summary: QualitySummary) -> tuple[Measurement, ...]:
    """Those that the summary has conditions for."""
    return tuple(_rows(summary))


def _rows(summary: QualitySummary) -> Iterator[Measurement]:
    yield Measurement(id="quality_prompts", value=summary.num_prompts, unit="prompts")
    full = [one for one in summary.conditions if one.fusion == str(FULL_FUSION)]
    if full:
        yield Measurement(id="kl_full", value=max(one.kl_max for one in full), unit="nats", bar=Bar("==", 0))
    yield from _row(summary, "kl_none", NO_FUSION, None)
    yield from _row(summary, "kl_legolink16", legolink(16), Bar("<=", _MAX_KL_LEGOLINK))
    yield from _row(summary, "kl_cacheblend15", cacheblend(0.15), Bar("<=", _MAX_KL_CACHEBLEND))
    for origin in Origin:
        for name, fusion in (("legolink16", legolink(16)), ("cacheblend15", cacheblend(0.15)), ("none", NO_FUSION)):
            found = summary.find(origin, str(fusion))
            if found is not None:
                yield from _with_interval(f"kl_{name}_{origin}", found)
                yield Measurement(id=f"agreement_{name}_{origin}", value=found.agreement.value, unit="ratio")


def _row(summary: QualitySummary, name: str, fusion: Fusion, bar: Bar | None) -> Iterator[Measurement]:
    found = summary.find(DEFAULT_ORIGIN, str(fusion))
    if found is not None:
        yield Measurement(id=name, value=found.kl.value, unit="nats", bar=bar)


def _with_interval(name: str, found: ConditionSummary) -> Iterator[Measurement]:
    yield Measurement(id=name, value=found.kl.value, unit="nats")
    yield Measurement(id=f"{name}_low", value=found.kl.low, unit="nats")
    yield Measurement(id=f"{name}_high", value=found.kl.high, unit="nats")
