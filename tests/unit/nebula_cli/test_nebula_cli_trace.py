"""`nebula trace import` as it is typed."""

from pathlib import Path

import pytest
from support.foreign_traces import mooncake_line, ragpulse_line, write_lines, write_ragpulse
from typer.testing import CliRunner

from nebula_bench.errors import TraceError
from nebula_bench.workload import read_trace
from nebula_cli.__main__ import app
from nebula_cli.errors import CliError


def run(*arguments: str | Path) -> str:
    """The output of `nebula trace import`, which must succeed."""
    result = CliRunner().invoke(app, ["trace", "import", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def mooncake(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "moon.jsonl", [mooncake_line(600, [0, 1]), mooncake_line(1200, [0, 2, 3])])


def test_a_mooncake_trace_is_named_after_its_output(mooncake: Path, tmp_path: Path) -> None:
    output = tmp_path / "chat.trace.jsonl.gz"
    said = run("--format", "mooncake", mooncake, "-o", output)
    assert [request.workload for request in read_trace(output)] == ["chat", "chat"]
    assert "2 requests in" in said
    assert "1,800 prompt tokens, 900 in the mean, 1,200 in the longest" in said
    # The second's first block of 512: 512 / 1,800.
    assert "28.4% of them" in said


def test_a_ragpulse_folder_is_imported(tmp_path: Path) -> None:
    write_ragpulse(tmp_path, [ragpulse_line("a", sys_prompt=[90], user_input=[60])])
    output = tmp_path / "out" / "rag.trace.jsonl.gz"
    run("--format", "ragpulse", tmp_path, "-o", output, "--name", "pulse")
    (request,) = read_trace(output)
    assert (request.workload, request.prompt_tokens) == ("pulse", 518)


def test_long_prompts_can_be_left_out(mooncake: Path, tmp_path: Path) -> None:
    said = run("--format", "mooncake", mooncake, "-o", tmp_path / "t.trace.jsonl.gz", "--max-prompt-tokens", "1000")
    assert "left out: 1 of more than 1,000 tokens" in said


def test_a_name_that_bench_would_not_find_is_told(mooncake: Path, tmp_path: Path) -> None:
    assert "would have to end in .trace.jsonl.gz" in run("--format", "mooncake", mooncake, "-o", tmp_path / "t.jsonl")


def test_another_block_size_can_be_given(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "moon.jsonl", [mooncake_line(40, [1, 2, 3])])
    output = tmp_path / "t.trace.jsonl.gz"
    run("--format", "mooncake", file, "-o", output, "--block-size", "16")
    assert [segment.tokens for segment in read_trace(output)[0].segments] == [16, 16, 8]


def test_the_source_is_not_overwritten(mooncake: Path) -> None:
    before = mooncake.read_bytes()
    with pytest.raises(CliError, match="that is the file to import"):
        run("--format", "mooncake", mooncake, "-o", mooncake)
    assert mooncake.read_bytes() == before


def test_a_trace_without_a_name_is_refused(mooncake: Path, tmp_path: Path) -> None:
    with pytest.raises(CliError, match="needs a name"):
        run("--format", "mooncake", mooncake, "-o", tmp_path / ".trace.jsonl.gz")


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"nothing\.jsonl: No such file"):
        run("--format", "mooncake", tmp_path / "nothing.jsonl", "-o", tmp_path / "t.trace.jsonl.gz")


def test_the_help_shows_how_each_format_is_imported() -> None:
    said = run("--help")
    assert "nebula trace import --format ragpulse" in said
    assert "nebula trace import --format mooncake" in said
