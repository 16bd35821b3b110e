"""The --row option."""

from pathlib import Path

import pytest

from nebula_bench.replay.measures import MEASURES
from nebula_bench.replay.outcome import RequestOutcome
from nebula_bench.replay.runner import ReplayRecord
from nebula_bench.replay.settings import ReplaySettings
from nebula_bench.replay.summary import ReplaySummary, summarize
from nebula_bench.results import Bar, Measurement
from nebula_cli.errors import CliError
from nebula_cli.row_option import RowRequest, measure_rows, parse_row


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nebula_errors=errors==0", RowRequest("nebula_errors", "errors", Bar("==", 0.0))),
        ("p50=ttft_p50_ms", RowRequest("p50", "ttft_p50_ms", None)),
        ("p50=ttft_p50_ms<=1.5e2", RowRequest("p50", "ttft_p50_ms", Bar("<=", 150.0))),
        ("plan.kinds-1=plan_kinds>=5", RowRequest("plan.kinds-1", "plan_kinds", Bar(">=", 5.0))),
    ],
)
def test_a_row_names_its_id_measure_and_bar(text: str, expected: RowRequest) -> None:
    assert parse_row(text) == expected


@pytest.mark.parametrize("text", ["", "errors", "a=", "a=errors<0", "a=errors==", "a=errors==none", "a=nothing==0"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(CliError, match="--row"):
        parse_row(text)


def summary_of_failure() -> ReplaySummary:
    failed = RequestOutcome(
        position=0,
        prompt_tokens=1,
        scheduled_s=0.0,
        sent_s=0.0,
        first_content_s=None,
        finished_s=1.0,
        receipt=None,
        error="500: no",
    )
    return summarize(ReplayRecord([failed]), ReplaySettings(url="http://127.0.0.1:1", rate_per_s=1.0))


def test_rows_take_their_values_from_the_summary() -> None:
    rows = measure_rows([parse_row("a=errors==0"), parse_row("b=plan_kinds")], summary_of_failure())
    assert rows == (
        Measurement(id="a", value=1, unit="requests", bar=Bar("==", 0.0)),
        Measurement(id="b", value=0, unit="kinds", bar=None),
    )
    assert [row.ok for row in rows] == [False, True]


def test_a_number_that_was_not_measured_makes_no_row() -> None:
    with pytest.raises(CliError, match="measured no ttft_p50_ms"):
        measure_rows([parse_row("a=ttft_p50_ms")], summary_of_failure())


def test_the_manual_names_every_measure() -> None:
    manual = (Path(__file__).parents[3] / "docs" / "replay.md").read_text()
    assert not [name for name in MEASURES if f"`{name}`" not in manual]
