"""Turns a report of `pip install --dry-run --report` into a lock: one `name==version` a line, sorted."""

import json
import sys
from pathlib import Path

LEFT_OUT = frozenset(
    {
        "nebula-router",  # this project
        "pip",
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


def lock_lines(report: Path) -> list[str]:
    """The pins of every package that the report would install, apart from those left out.

    Raises:
        OSError: the report cannot be read.
        KeyError: the file is not a report of pip.
    """
    packages = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    pins = {package["name"].lower().replace("_", "-"): package["version"] for package in packages}
    return [f"{name}=={version}" for name, version in sorted(pins.items()) if name not in LEFT_OUT]


if __name__ == "__main__":
    print("\n".join(lock_lines(Path(sys.argv[1]))))
