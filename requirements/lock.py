"""Turns reports of `pip install --dry-run --report` into a lock: one `name==version` a line, sorted.

With `--needs`, into what the packages of the reports need beside themselves: requirements for pip to resolve.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

LEFT_OUT = frozenset(
    {
        "nebula-router",  # this project
        "pip",
        # Of no use here, and its package on PyPI only downloads another from the index of its vendor:
        "aisimulate",
        # Installed before the lock, from wherever pip finds the build without CUDA:
        "torch",
        # Their wheels on PyPI expect a torch with CUDA and break every import of `transformers` beside another:
        "torchvision",
        "torchaudio",
        "torchcodec",
        # Only of use with an NVIDIA GPU:
        "triton",
        "nixl-cu12",
    }
)


def lock_lines(reports: Iterable[Path]) -> list[str]:
    """The pins of every package that the reports would install, apart from those left out.

    Raises:
        OSError: a report cannot be read.
        KeyError: a file is not a report of pip.
    """
    pins = {_name(package["name"]): package["version"] for package in _packages(reports)}
    return [f"{name}=={version}" for name, version in sorted(pins.items()) if name not in LEFT_OUT]


def needs(reports: Iterable[Path]) -> list[str]:
    """What the packages of the reports need, without extras, apart from each other and from those left out.

    Raises:
        OSError: a report cannot be read.
        KeyError: a file is not a report of pip.
    """
    packages = _packages(reports)
    given = LEFT_OUT | {_name(package["name"]) for package in packages}
    wanted = [Requirement(text) for package in packages for text in package.get("requires_dist", ())]
    return sorted(
        str(one)
        for one in wanted
        if _name(one.name) not in given and (one.marker is None or one.marker.evaluate({"extra": ""}))
    )


def _packages(reports: Iterable[Path]) -> list[dict[str, Any]]:
    return [item["metadata"] for report in reports for item in json.loads(report.read_text())["install"]]


def _name(name: str) -> str:
    return name.lower().replace("_", "-")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--needs", action="store_true")
    parser.add_argument("reports", nargs="+", type=Path)
    arguments = parser.parse_args()
    print("\n".join((needs if arguments.needs else lock_lines)(arguments.reports)))
