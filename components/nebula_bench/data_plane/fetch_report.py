"""Passages of other workers, as Markdown and as rows of the results file."""

from collections.abc import Iterator, Sequence
from statistics import median

from nebula_bench.data_plane.fetch import FetchFigures
from nebula_bench.data_plane.fetched import FetchTurns
from nebula_bench.data_plane.first_answer import FirstAnswer
from nebula_bench.data_plane.joined import JoinedPairs
from nebula_bench.results import Bar, Measurement
from nebula_bench.serving.markdown_table import markdown_table, number

_MAX_RATIO = 0.35
_NO_DIVERGENCE_NATS = 0.0
_ONE_COMPUTATION = 1


def fetch_measurements(figures: FetchFigures) -> tuple[Measurement, ...]:
    fetched = figures.fetched
    return (
        Measurement(id="fetch_ttft_ratio", value=fetched.ratio, unit="ratio", bar=Bar("<=", _MAX_RATIO)),
        Measurement(id="fetch_kl", value=fetched.most_divergence_nats, unit="nats", bar=Bar("==", _NO_DIVERGENCE_NATS)),
        _computations("joined_computations", figures.joined),
        _computations("joined_computations_sim", figures.joined_sim),
        Measurement(id="fetch_ttft_s", value=fetched.fetched_s, unit="s"),
        Measurement(id="fetch_local_ttft_s", value=fetched.local_s, unit="s"),
        Measurement(id="fetch_computed_ttft_s", value=fetched.computed_s, unit="s"),
    )


def fetch_markdown(figures: FetchFigures) -> str:
    return "\n".join((_fetched_markdown(figures.fetched), _joined_markdown(figures)))


def _fetched_markdown(fetched: FetchTurns) -> str:
    intro = (
        f"Prompts of {fetched.prompt_tokens:,} tokens on `vllm` workers, {fetched.segment_tokens:,} of them in "
        f"passages, each sent to a chosen worker; time to the first token at the client, {len(fetched.turns)} of each "
        "kind in turns. No two prompts share their beginning, or have passages in the same order.\n"
    )
    table = markdown_table(
        ("the passages", "median, s", "least, s", "most, s", "against computing", "waited, s"), _time_rows(fetched)
    )
    num_told = min(len(turn.fetched.top) for turn in fetched.turns)
    divergence = (
        "The first token's distribution by fetched passages, from that of the worker that had them, asked the same "
        f"prompt (KL over the {num_told} likeliest tokens and the rest): {fetched.most_divergence_nats:.3g} nats at "
        f"most, {fetched.mean_divergence_nats:.3g} in the mean.\n"
    )
    return "\n".join((intro, table, divergence))


def _time_rows(fetched: FetchTurns) -> Iterator[list[str]]:
    turns = fetched.turns
    yield _time_row("fetched from another worker", [turn.fetched for turn in turns], fetched.computed_s)
    yield _time_row("at the worker itself", [turn.local for turn in turns], fetched.computed_s)
    yield _time_row("new, computed", [turn.computed for turn in turns], fetched.computed_s)


def _time_row(name: str, answers: Sequence[FirstAnswer], computed_s: float) -> list[str]:
    times_s = sorted(answer.after_s for answer in answers)
    waits_s = sorted(answer.receipt.timing.wait_s for answer in answers)
    middle_s = median(times_s)
    return [
        name,
        number(middle_s, 2),
        number(times_s[0], 2),
        number(times_s[-1], 2),
        number(middle_s / computed_s, 2),
        number(median(waits_s), 2),
    ]


def _joined_markdown(figures: FetchFigures) -> str:
    intro = (
        "Two requests that miss the same passages at the same time, in another order each, on two workers, of which "
        "the second has another prompt in front. What a helper computes for them counts too.\n"
    )
    rows = [_joined_row("`vllm`", figures.joined), _joined_row("`sim`", figures.joined_sim)]
    header = ("", "pairs", "passages in front", "computations of a passage", "joined", "first, s", "second, s")
    return "\n".join((intro, markdown_table(header, rows)))


def _joined_row(name: str, joined: JoinedPairs) -> list[str]:
    """Of computations the most, of joined passages the fewest in a pair, of times to the first token the medians."""
    return [
        name,
        number(len(joined.pairs)),
        number(joined.num_in_front),
        number(joined.most_computations),
        number(joined.num_joined),
        number(joined.first_s, 2),
        number(joined.second_s, 2),
    ]


def _computations(name: str, joined: JoinedPairs) -> Measurement:
    return Measurement(id=name, value=joined.most_computations, unit="computations", bar=Bar("==", _ONE_COMPUTATION))
