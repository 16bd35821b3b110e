"""The built wheel: what runs from a checkout runs from an installation."""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = {".py", ".json", ".md", ".typed", ".yaml"}
NOT_SHIPPED = shutil.ignore_patterns("__pycache__", "*.egg-info")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Builds from a copy, since setuptools leaves its `build` folder beside the sources."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in ("components", "graphs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=NOT_SHIPPED)
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source / file)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(target)]
    subprocess.run([*build, str(source)], check=True, timeout=100)
    with zipfile.ZipFile(next(target.glob("*.whl"))) as built:
        yield built


def test_the_wheel_holds_every_source_and_data_file(wheel: zipfile.ZipFile) -> None:
    packaged = [path for path in (ROOT / "components").rglob("*") if path.suffix in SHIPPED]
    expected = {path.relative_to(ROOT / "components").as_posix() for path in packaged}
    expected |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "graphs").rglob("*.py")}
    assert "nebula_serve/sim_model/data/tokenizer.json" in expected
    assert expected - set(wheel.namelist()) == set()


def test_the_wheel_puts_nothing_but_the_packages_on_the_import_path(wheel: zipfile.ZipFile) -> None:
    folders = {name.split("/")[0] for name in wheel.namelist()}
    packages = {path.parent.name for path in (ROOT / "components").glob("*/__init__.py")}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == packages | {"graphs"}


def test_the_wheel_has_both_console_scripts(wheel: zipfile.ZipFile) -> None:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert wheel.read(name).decode().split() == [
        "[console_scripts]",
        *("dynamo", "=", "nebula_serve.__main__:main"),
        *("nebula", "=", "nebula_cli.__main__:main"),
    ]
