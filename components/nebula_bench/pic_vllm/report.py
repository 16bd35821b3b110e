"""What was measured, as Markdown and as rows of the results file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nebula_bench.counted_tests import TestCase
from nebula_bench.pic_vllm.chat import ChatAnswer
from nebula_bench.pic_vllm.first_token_times import (
    CACHEBLEND15,
    LEGOLINK16,
    FirstToken,
    FirstTokenTimes,
    median_s,
)
from nebula_bench.pic_vllm.memory import MemoryGrowth
from nebula_bench.results import Bar, Measurement
from nebula_bench.serving.markdown_table import markdown_table

_MAX_READY_S = 240.0
_MAX_LEGOLINK_RATIO = 0.2
_MAX_CACHEBLEND_RATIO = 0.4
_MAX_FIRST_SIGHT_RATIO = 1.05
_MAX_GROWTH_RATIO = 1.05
_SHOWN_CHARACTERS = 240
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class ServeFigures:
    ready_s: float
    first_chat: ChatAnswer
    second_chat: ChatAnswer
    times: FirstTokenTimes


def serve_measurements(figures: ServeFigures) -> tuple[Measurement, ...]:
    times = figures.times
    return (
        Measurement(id="ready_s", value=figures.ready_s, unit="s", bar=Bar("<=", _MAX_READY_S)),
        Measurement(
            id="second_segment_hit_tokens",
            value=figures.second_chat.receipt.segment_hit_tokens,
            unit="tokens",
            bar=Bar(">=", 1),
        ),
        _ratio("ttft_ratio_legolink16", times.known_ratio(LEGOLINK16), _MAX_LEGOLINK_RATIO),
        _ratio("ttft_ratio_cacheblend15", times.known_ratio(CACHEBLEND15), _MAX_CACHEBLEND_RATIO),
        _ratio("ttft_ratio_first_sight", times.first_sight_ratio, _MAX_FIRST_SIGHT_RATIO),
        *(
            Measurement(id=f"ttft_{name}_s", value=median_s(measured), unit="s")
            for name, measured in (
                ("legolink16", times.known[LEGOLINK16]),
                ("cacheblend15", times.known[CACHEBLEND15]),
                ("off", times.known_off),
                ("first_sight", times.unknown),
                ("first_sight_off", times.unknown_off),
            )
        ),
    )


def serve_markdown(figures: ServeFigures) -> str:
    times = figures.times
    intro = (
        f"Ready {figures.ready_s:.0f} s after the start. Prompts of {times.prompt_tokens:,} tokens, "
        f"{times.segment_tokens:,} of them in passages, at the client, {len(times.known_off)} of each kind in turns; "
        f"none shares its beginning with another. {times.num_repeated_turns} turns were begun again because the router "
        "placed a prompt on a worker that did not have the passages.\n"
    )
    table = markdown_table(
        ("time to the first token", "median, s", "least, s", "most, s", "against reuse off", "recomputed"),
        _time_rows(times),
    )
    return "\n".join((intro, table, _chat_markdown(figures)))


def _time_rows(times: FirstTokenTimes) -> Iterator[list[str]]:
    off_s, unknown_off_s = median_s(times.known_off), median_s(times.unknown_off)
    for fusion, measured in times.known.items():
        yield _time_row(f"known passages, `{fusion}`", measured, off_s)
    yield _time_row("the same prompts, reuse off", times.known_off, off_s)
    yield _time_row("unknown passages", times.unknown, unknown_off_s)
    yield _time_row("the same prompts, reuse off", times.unknown_off, unknown_off_s)


def _time_row(name: str, measured: Sequence[FirstToken], off_s: float) -> list[str]:
    seconds = [one.after_s for one in measured]
    recomputed = sum(one.receipt.recomputed_tokens for one in measured)
    hits = sum(one.receipt.segment_hit_tokens for one in measured)
    return [
        name,
        f"{median_s(measured):.2f}",
        f"{min(seconds):.2f}",
        f"{max(seconds):.2f}",
        f"{median_s(measured) / off_s:.2f}",
        f"{recomputed / hits:.1%}" if hits else "-",
    ]


def _chat_markdown(figures: ServeFigures) -> str:
    receipt = figures.second_chat.receipt
    return (
        f"A chat with passages as messages, and again with the passages in another order: of the second prompt's "
        f"{receipt.prompt_tokens:,} tokens, {receipt.segment_hit_tokens:,} were segment hits and "
        f"{receipt.prefix_hit_tokens:,} prefix hits. The answers:\n\n"
        f"> {_quoted(figures.first_chat.text)}\n\n> {_quoted(figures.second_chat.text)}\n"
    )


def _quoted(text: str) -> str:
    return " ".join(text.split())[:_SHOWN_CHARACTERS]


def memory_measurements(growth: MemoryGrowth) -> tuple[Measurement, ...]:
    return (_ratio("rss_growth_ratio", growth.ratio, _MAX_GROWTH_RATIO),)


def memory_markdown(growth: MemoryGrowth, store_tokens: int) -> str:
    rows = [
        [service, f"{before / _MIB:,.0f}", f"{growth.after_bytes.get(service, 0) / _MIB:,.0f}"]
        for service, before in growth.before_bytes.items()
    ]
    return (
        f"{growth.num_requests:,} requests with {growth.num_segments:,} distinct segments, "
        f"{growth.segment_tokens:,} tokens together, where each worker's store holds {store_tokens:,}: resident memory "
        f"grew by {growth.ratio - 1:+.1%}.\n\n" + markdown_table(("service", "MiB before", "MiB after"), rows)
    )


def exactness_measurements(cases: Sequence[TestCase]) -> tuple[Measurement, ...]:
    passed = sum(case.has_passed for case in cases)
    return (Measurement(id="exactness_cases", value=passed, unit="cases", bar=Bar("==", max(1, len(cases)))),)


def exactness_markdown(cases: Sequence[TestCase]) -> str:
    failed = [case.name for case in cases if not case.has_passed]
    listed = "".join(f"- `{name}`\n" for name in failed)
    return f"{len(cases) - len(failed)} of {len(cases)} tests of exactness pass.\n{listed}"


def _ratio(name: str, value: float, most: float) -> Measurement:
    return Measurement(id=name, value=value, unit="ratio", bar=Bar("<=", most))
