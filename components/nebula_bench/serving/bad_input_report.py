"""What clients are told about wrong requests, as Markdown and as rows of a results file."""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from nebula_bench.results import Bar, Measurement
from nebula_bench.serving.bad_input import BadInputOutcome, Refusal
from nebula_bench.serving.bad_input_cases import Api
from nebula_bench.serving.markdown_table import markdown_table

_MAX_REASON_CHARACTERS = 170
_POSITION = re.compile(r" at line \d+ column \d+$")
_REQUEST_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def bad_input_markdown(outcomes: Sequence[BadInputOutcome]) -> str:
    good = sum(outcome.is_as_documented for outcome in outcomes)
    alive = sum(outcome.is_alive for outcome in outcomes)
    with_reason = sum(outcome.has_reason for outcome in outcomes)
    intro = (
        f"{good} of {len(outcomes)} requests were refused as documented, {with_reason} of them with a 4xx that says "
        f"why; after {alive} of {len(outcomes)} the server answered the next good request.\n"
    )
    parts = [intro]
    for api in Api:
        chosen = [outcome for outcome in outcomes if outcome.case.api is api]
        header = (f"`{api}`", "not streamed", "streamed")
        parts.append(markdown_table(header, _rows(chosen), num_text_columns=len(header)))
    return "\n".join(parts)


def bad_input_measurements(outcomes: Sequence[BadInputOutcome]) -> tuple[Measurement, ...]:
    good = sum(outcome.is_as_documented for outcome in outcomes)
    with_reason = sum(outcome.has_reason for outcome in outcomes)
    return (
        Measurement(id="bad_input_cases", value=good, unit="requests", bar=Bar("==", len(outcomes))),
        Measurement(id="bad_input_4xx_with_reason", value=with_reason, unit="requests"),
    )


def _rows(outcomes: Iterable[BadInputOutcome]) -> list[tuple[str, ...]]:
    by_case = groupby(outcomes, key=lambda outcome: outcome.case.name)
    return [(name, *_cells([_told(outcome) for outcome in pair])) for name, pair in by_case]


def _cells(told: Sequence[str]) -> tuple[str, ...]:
    first, *others = told
    return (first, *("the same" if other == first else other for other in others))


def _told(outcome: BadInputOutcome) -> str:
    told = _refusal(outcome.refusal)
    return told if outcome.is_as_documented else f"{told} **(expected {_refusal(outcome.expected)})**"


def _refusal(refusal: Refusal) -> str:
    reason = _POSITION.sub("", _REQUEST_ID.sub("ID", refusal.reason))
    if len(reason) > _MAX_REASON_CHARACTERS:
        reason = reason[: _MAX_REASON_CHARACTERS - 3] + "..."
    return f"{refusal.status} {reason}"
