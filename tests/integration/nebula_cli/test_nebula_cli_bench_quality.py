"""`nebula bench quality` as a process, on vLLM with a tiny model of random weights."""

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

from nebula_bench.results import read_rows
from nebula_serve.sim_model.model_folder import packaged_folder
from pic_worker.adapters.vllm.tiny_model import write_tiny_model

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
WORDS = ("the", "a", "router", "worker", "keeps", "finds", "segment", "prompt", "of", "in", "behind", "before", "token")


def bench_quality(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nebula_cli", "bench", "quality", *options],
        cwd=ROOT,
        # Threads that spin while they wait slow each other down on cores that others use too.
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture
def passages(tmp_path: Path) -> Path:
    chance = random.Random(1)
    lines = [json.dumps({"id": str(number), "text": " ".join(chance.choices(WORDS, k=600))}) for number in range(12)]
    path = tmp_path / "passages.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


@pytest.mark.timeout(300)
def test_recomputing_all_is_exact_and_every_figure_is_written(tmp_path: Path, passages: Path) -> None:
    model = write_tiny_model(tmp_path / "model", tokenizer_folder=packaged_folder())
    results, summary, journal = (tmp_path / name for name in ("rows.json", "quality.json", "journal.jsonl"))
    done = bench_quality(
        *("--model", str(model), "--passages", str(passages), "--prompts", "2", "--limit", "1"),
        *("--results", str(results), "--summary", str(summary), "--report", str(tmp_path), "--journal", str(journal)),
    )
    # With random weights reuse may miss its bars, which exit code 1 says.
    assert done.returncode in (0, 1), done.stderr
    rows = {row.id: row for row in read_rows(results)}
    assert rows["quality_prompts"].value == 1
    assert rows["kl_full"].value == 0
    assert rows["kl_none_alone"].value > 0
    figures = json.loads(summary.read_text())
    assert len(figures["conditions"]) == 16
    assert (tmp_path / "quality.png").read_bytes().startswith(b"\x89PNG")
    assert "| `cacheblend:0.15` | in context |" in (tmp_path / "quality.md").read_text()
    assert len(journal.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--model", "nowhere"), "no model in nowhere"),
        (("--prompts", "3"), "3 prompts cannot be shared equally by 2 seeds"),
        (("--dtype", "int4"), "dtype"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(options: tuple[str, ...], reason: str) -> None:
    done = bench_quality(*options)
    assert done.returncode == 2
    assert reason in done.stderr.splitlines()[-1]
