from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from nebula_bench.results import Bar, Measurement
from nebula_cli.bench_progress import BenchProgress
from nebula_cli.parts_run import run_parts


@dataclass(frozen=True)
class Measured:
    part: str
    markdown: str
    measurements: tuple[Measurement, ...]


Measure = Callable[[str, BenchProgress], Coroutine[object, object, Measured]]


def measuring(value: float) -> Measure:
    async def measure(part: str, progress: BenchProgress) -> Measured:
        one = Measurement(id=f"{part}_s", value=value, unit="s", bar=Bar("<=", 2.0))
        return Measured(part, f"table of {part}", (one,))

    return measure


def exit_code(measure: Measure, docs: Path | None = None) -> int:
    with pytest.raises(typer.Exit) as ended:
        run_parts(("load", "kill"), measure, results=None, docs=docs, mark_prefix="x-")
    return ended.value.exit_code


def test_bars_that_are_met_end_with_zero() -> None:
    assert exit_code(measuring(2.0)) == 0


def test_a_missed_bar_is_named_and_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(measuring(2.5)) == 1
    captured = capsys.readouterr()
    assert captured.err.splitlines()[-2:] == [f"nebula: {part}_s is 2.5, not <= 2" for part in ("load", "kill")]
    assert "table of kill" in captured.out


def test_an_interruption_ends_with_the_shells_code() -> None:
    async def measure(part: str, progress: BenchProgress) -> Measured:
        raise KeyboardInterrupt

    assert exit_code(measure) == 130


def test_tables_go_between_their_marks(tmp_path: Path) -> None:
    docs = tmp_path / "results.md"
    docs.write_text(
        "<!-- begin x-load -->\nold\n<!-- end x-load -->\n<!-- begin x-kill -->\nold\n<!-- end x-kill -->\n"
    )
    assert exit_code(measuring(1.0), docs) == 0
    assert "table of load" in docs.read_text()
    assert "old" not in docs.read_text()
