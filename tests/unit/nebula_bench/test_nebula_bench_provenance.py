"""Provenance: what is said about a number's origin, and what is kept back."""

import re
import subprocess
from pathlib import Path

import pytest

from nebula_bench.provenance import UNKNOWN, describe_command, describe_commit, describe_machine


def test_a_path_outside_the_current_folder_loses_all_but_its_name() -> None:
    arguments = ["replay", "--trace", "../data/rag.gz", "--json=/home/me/out.json", "--results", "benchmarks/r.json"]
    assert describe_command("nebula", arguments) == (
        "nebula replay --trace rag.gz --json=out.json --results benchmarks/r.json"
    )


def test_an_argument_with_a_sign_of_comparison_is_quoted_so_that_it_can_be_typed_again() -> None:
    assert describe_command("nebula", ["--row", "x=errors<=1"]) == "nebula --row 'x=errors<=1'"


def test_a_machine_is_its_cores_memory_and_processor() -> None:
    assert re.fullmatch(r"\d+ cores, \d+ GiB, .+", describe_machine())


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results.md").write_text("1\n")
    (tmp_path / "code.py").write_text("1\n")
    (tmp_path / "benchmarks" / "results" / "serve.json").write_text("[]\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "Begin")
    return tmp_path


def test_a_clean_tree_is_its_short_commit(repository: Path) -> None:
    assert re.fullmatch(r"[0-9a-f]{7,}", describe_commit(repository / "benchmarks"))


def test_a_changed_source_is_dirty_but_a_changed_result_is_not(repository: Path) -> None:
    (repository / "benchmarks" / "results" / "serve.json").write_text("[1]\n")
    (repository / "docs" / "results.md").write_text("2\n")
    assert not describe_commit(repository).endswith("-dirty")
    (repository / "code.py").write_text("2\n")
    assert describe_commit(repository / "benchmarks").endswith("-dirty")


def test_without_a_repository_the_commit_is_unknown(tmp_path: Path) -> None:
    assert describe_commit(tmp_path) == UNKNOWN
