"""`nebula bench serve` as a process, on a small graph of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from nebula_bench.results import read_rows

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
SMALL = ("--nebula-config", "configs/nebula-2p1d-sim.yaml", "--time-scale", "0.01")


def bench_serve(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nebula_cli", "bench", "serve", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_part_writes_its_rows_and_its_table_and_leaves_no_graph(tmp_path: Path) -> None:
    document, results = tmp_path / "results.md", tmp_path / "serve.json"
    document.write_text("# Mine\n<!-- begin bad-input -->\n<!-- end bad-input -->\n")
    places = ("--results", str(results), "--docs", str(document), "--logs", str(tmp_path / "logs"))
    done = bench_serve("--part", "bad-input", *SMALL, *places)
    assert done.returncode == 0, done.stdout + done.stderr
    cases, with_reason = read_rows(results)
    assert (cases.id, cases.ok) == ("bad_input_cases", True)
    assert 0 < with_reason.value == cases.value
    assert cases.command.startswith("nebula bench serve --part bad-input")
    assert "| overlapping spans | 400 span [4, 8) overlaps" in document.read_text()
    assert "| overlapping spans | 400 span [4, 8) overlaps" in done.stdout
    assert "Nats stopped" in (tmp_path / "logs" / "nebula.log").read_text()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--part", "replay"), "part replay needs a trace"),
        (("--part", "kill", "--trace", "nothing.jsonl"), "No such file"),
        (("--part", "bad-input", "--nebula-config", "nothing.yaml"), "no settings of graphs:nebula at nothing.yaml"),
        (("--requests", "0"), "greater than or equal to 20"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(options: tuple[str, ...], reason: str) -> None:
    done = bench_serve(*options)
    assert done.returncode == 2
    assert done.stdout == ""
    assert reason in done.stderr.splitlines()[-1]
