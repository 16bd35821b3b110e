"""`nebula bench pic-vllm` as a process, up to the start of a graph."""

import subprocess
import sys
from pathlib import Path

import pytest

from nebula_serve.sim_model.model_folder import packaged_folder

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]


def bench_pic_vllm(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nebula_cli", "bench", "pic-vllm", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--part", "serve", "--model", "nowhere"), "no tokenizer at nowhere/tokenizer.json"),
        (("--part", "serve", "--model", str(packaged_folder()), "--passages", "nothing.gz"), "nothing.gz"),
        (("--repeats", "1"), "num_repeats: Input should be greater than or equal to 3"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(options: tuple[str, ...], reason: str) -> None:
    done = bench_pic_vllm(*options)
    assert done.returncode == 2
    assert reason in done.stderr.splitlines()[-1]


def test_missing_settings_of_the_graph_are_named(shared_dir: Path) -> None:
    passages = shared_dir / "data" / "passages.jsonl.gz"
    places = ("--model", str(packaged_folder()), "--passages", str(passages), "--config", "nothing.yaml")
    done = bench_pic_vllm("--part", "memory", *places)
    assert done.returncode == 2
    assert "no settings of graphs:nebula at nothing.yaml" in done.stderr.splitlines()[-1]
