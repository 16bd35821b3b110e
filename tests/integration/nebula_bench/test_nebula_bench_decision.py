"""`nebula bench decision` on a small scene: real NATS, Dynamo's runtime and its KV router."""

import subprocess
import sys
from pathlib import Path

import pytest

from nebula_bench.results import read_rows

pytestmark = pytest.mark.integration


def test_both_routers_answer_the_same_question_and_rows_are_written(tmp_path: Path) -> None:
    options = "--workers 2 --tokens 1000 --tokens 4000 --entries 4096 --repetitions 1 --calls 2 --markdown"
    done = subprocess.run(
        [sys.executable, "-m", "nebula_cli", "bench", "decision", *options.split(), "--results", "serve.json"],
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split("|")[2].strip() for line in done.stdout.splitlines()[2:]] == ["1,000", "4,000"]
    rows = read_rows(tmp_path / "serve.json")
    assert [row.id for row in rows] == ["decision_ratio_1k_2w", "decision_ratio_4k_2w"]
    assert all(row.value > 0 for row in rows)
