"""`nebula bench cell`, `compare` and `paper` as they are typed."""

import gzip
from pathlib import Path

import msgspec
import pytest
from support.small_traces import retrieval_trace
from typer.testing import CliRunner

from nebula_bench.errors import CellError, TraceError
from nebula_bench.results import read_rows
from nebula_cli.__main__ import app
from nebula_cli.errors import CliError

NUM_REQUESTS = 30


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two small workloads of real names."""
    lines = b"".join(msgspec.json.encode(one) + b"\n" for one in retrieval_trace(NUM_REQUESTS))
    for workload in ("ragpulse", "tau_retail"):
        (tmp_path / f"{workload}.trace.jsonl.gz").write_bytes(gzip.compress(lines))
    return tmp_path


def run(*arguments: str) -> str:
    """The output of `nebula bench` with these arguments, which must succeed."""
    result = CliRunner().invoke(app, ["bench", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def cell_arguments(data: Path, *more: str) -> tuple[str, ...]:
    return ("--workload", "ragpulse", "--rate", "20", "--data", str(data), *more)


def test_a_cell_prints_a_table_and_writes_json(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "cell.json"
    output = run("cell", *cell_arguments(data, "--policy", "round_robin_pic", "--json", str(file)))
    assert "round_robin_pic" in output
    (result,) = msgspec.json.decode(file.read_bytes())
    assert (result["model"], result["summary"]["num_requests"]) == ("Qwen3-14B", NUM_REQUESTS)


@pytest.mark.parametrize(("fusion", "share"), [("none", 0.0), ("cacheblend:0.5", 0.5)])
def test_a_fusion_can_be_chosen(data: Path, tmp_path: Path, fusion: str, share: float) -> None:
    file = tmp_path / "cell.json"
    run("cell", *cell_arguments(data, "--policy", "round_robin_pic", "--fusion", fusion, "--json", str(file)))
    (result,) = msgspec.json.decode(file.read_bytes())
    tokens = result["summary"]["tokens"]
    assert tokens["local_hit"] > 0
    # Each segment's share is rounded up.
    assert tokens["recomputed"] == pytest.approx(share * tokens["local_hit"], rel=0.01)


def test_policies_are_compared_on_the_same_arrivals(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "cells.json"
    run("compare", *cell_arguments(data, "--policy", "nebula", "--policy", "oracle", "--json", str(file)))
    first, second = msgspec.json.decode(file.read_bytes())
    assert (first["policy"], second["policy"]) == ("nebula", "oracle")
    assert first["summary"]["tokens"]["prompt"] == second["summary"]["tokens"]["prompt"]


def test_a_setting_of_the_cluster_can_be_changed(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "cell.json"
    arguments = cell_arguments(
        data, "--json", str(file), "--set", "network.message_s=0.1", "--set", "noise.step_ratio=0"
    )
    run("cell", *arguments)
    (result,) = msgspec.json.decode(file.read_bytes())
    # A message to the worker and one back.
    assert result["summary"]["breakdown_ms"]["messages"] == pytest.approx(200)


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        (("--policy", "magic"), CellError, "unknown policy 'magic'"),
        (("--model", "GPT-2"), CellError, "unknown model 'GPT-2'"),
        (("--set", "network.message_s"), CliError, "key=value"),
        (("--set", "internet.message_s=1"), CliError, "no group 'internet'"),
        (("--set", "network.message_s=-1"), CliError, "network.message_s"),
        (("--set", "network.speed=1"), CliError, "network.speed"),
        (("--fusion", "blend"), CliError, "^worker.fusion: 'blend' is no fusion; the forms are legolink:16"),
        (("--warmup", "30"), CliError, "none of 30 requests"),
        (("--workload", "nothing"), TraceError, "nothing.trace.jsonl.gz"),
    ],
)
def test_what_is_wrong_is_named(data: Path, more: tuple[str, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        run("cell", *cell_arguments(data), *more)


def test_the_paper_writes_rows_and_a_report(data: Path, tmp_path: Path) -> None:
    results, report = tmp_path / "paper.json", tmp_path / "report"
    scope = ("--model", "Qwen3-14B", "--workload", "ragpulse", "--workload", "tau_retail", "--seed", "1")
    places = ("--data", str(data), "--results", str(results), "--report", str(report))
    run("paper", "--part", "accounting", "--processes", "1", *scope, *places)
    rows = read_rows(results)
    assert all(row.ok for row in rows)
    assert [row.id for row in rows] == [
        "invalid_hit_reduction_ragpulse",
        "invalid_hit_reduction_tau_retail",
        "repeated_reduction_ragpulse",
        "repeated_reduction_tau_retail",
    ]
    page = (report / "accounting.md").read_text()
    assert "repeated computation" in page
    assert "at commit" in page, "the page tells where its figures come from"


def test_the_papers_own_rates_are_a_part_of_their_own(data: Path, tmp_path: Path) -> None:
    results, report = tmp_path / "paper.json", tmp_path / "report"
    scope = ("--model", "Llama-3.1-8B", "--workload", "ragpulse", "--workload", "tau_retail", "--seed", "1")
    places = ("--data", str(data), "--results", str(results), "--report", str(report))
    run("paper", "--part", "paper-rates", "--processes", "1", *scope, *places)
    assert [row.id for row in read_rows(results)] == [
        "paper_rates_ttft_reduction_ragpulse40",
        "paper_rates_ttft_reduction_ragpulse48",
        "paper_rates_ttft_reduction_tau_retail40",
        "paper_rates_ttft_reduction",
    ]
    assert "## The paper's rates, on A100" in (report / "paper-rates.md").read_text()
