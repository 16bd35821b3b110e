"""The file that says where a running graph is: `run/<graph>.json` in its working directory."""

import os
from pathlib import Path

import msgspec
import psutil

RUN_DIR = "run"


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    service: str
    pid: int | None = None
    """None while it waits for its restart."""
    metrics_url: str | None = None


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    graph: str
    pid: int
    """Of `dynamo serve`; a SIGTERM to it stops everything."""
    pid_created_s: float
    """When that process was made, seconds of the epoch: tells it from a later one with the same pid."""
    working_dir: str
    url: str | None = None
    """Of the HTTP frontend."""
    model_name: str
    nats_url: str
    namespaces: tuple[str, ...]
    """Dynamo namespaces of this deployment; events are published below them."""
    environment: dict[str, str]
    """What a further process needs to join the planes."""
    ready: bool = False
    processes: tuple[ProcessInfo, ...] = ()


def run_info_path(working_dir: Path, graph_name: str) -> Path:
    return working_dir / RUN_DIR / f"{graph_name}.json"


def write_run_info(path: Path, info: RunInfo) -> None:
    """Replaces the file in one step; only its owner can read it, for the NATS URL may hold a password.

    Raises:
        OSError: the folder cannot be written.
    """
    fresh = path.with_suffix(".json.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(info), indent=2) + b"\n")
    fresh.replace(path)


def read_run_info(path: Path) -> RunInfo | None:
    """The graph that the file describes, or None when there is no such file or that graph does not run any more."""
    try:
        info = msgspec.json.decode(path.read_bytes(), type=RunInfo)
    except (OSError, msgspec.DecodeError):
        return None
    return info if _is_running(info) else None


def find_running_graphs(working_dir: Path) -> tuple[RunInfo, ...]:
    """The graphs that run with this working directory, by name."""
    candidates = sorted((working_dir / RUN_DIR).glob("*.json"))
    return tuple(info for path in candidates if (info := read_run_info(path)) is not None)


def own_pid_created_s() -> float:
    return float(psutil.Process().create_time())


def _is_running(info: RunInfo) -> bool:
    try:
        # Rounded in the file and read from clock ticks: equal to a hundredth of a second is the same process.
        return abs(float(psutil.Process(info.pid).create_time()) - info.pid_created_s) < 0.05
    except psutil.Error:
        return False
