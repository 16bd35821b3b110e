"""Where a number comes from: the command, the commit and the machine, without names of hosts or folders."""

import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

UNKNOWN = "unknown"
_RESULT_FOLDERS = ("benchmarks/results", "docs")


def describe_command(program: str, arguments: Sequence[str]) -> str:
    """The command line; of a path that leads outside the current folder only the last part is kept."""
    return shlex.join([program, *map(_shorten_path, arguments)])


def describe_machine() -> str:
    """Cores that this process may use, memory, and the processor's name."""
    cores = len(os.sched_getaffinity(0))
    memory_gib = round(psutil.virtual_memory().total / 2**30)
    return f"{cores} cores, {memory_gib} GiB, {_cpu_model(Path('/proc/cpuinfo'))}"


def describe_commit(folder: Path) -> str:
    """Short hash of the commit that is checked out around `folder`; `-dirty` follows when tracked files differ.

    Files of results and documents do not count: writing one table must not make the next look as if it came from other
    code.
    """
    commit = _git(folder, "rev-parse", "--short", "HEAD")
    if commit is None:
        return UNKNOWN
    excludes = [f":(top,exclude){results}" for results in _RESULT_FOLDERS]
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ":(top)", *excludes)
    return f"{commit}-dirty" if changes else commit


def _shorten_path(argument: str) -> str:
    flag, equals, value = argument.rpartition("=") if argument.startswith("--") else ("", "", argument)
    if value.startswith(("/", "../", "~")):
        value = Path(value).name
    return f"{flag}{equals}{value}"


def _cpu_model(cpuinfo: Path) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine() or UNKNOWN)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        finished = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.stdout.strip() if finished.returncode == 0 else None
