"""The folder of one run: process settings, ready files, file discovery. A lock says who uses it."""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nebula_serve.errors import AlreadyRunningError, WorkingDirectoryError
from nebula_serve.run_info import RUN_DIR, read_run_info, run_info_path

_SECRET_BYTES = 32


@dataclass(frozen=True, slots=True)
class RunDirectory:
    path: Path

    def config_file(self, process: str) -> Path:
        return self.path / "config" / f"{process}.json"

    def ready_file(self, process: str) -> Path:
        return self.path / "ready" / process

    @property
    def discovery_dir(self) -> Path:
        return self.path / "discovery"

    @property
    def secret_file(self) -> Path:
        return self.path / "secret"

    def make(self) -> None:
        for folder in (self.path / "config", self.path / "ready", self.discovery_dir):
            folder.mkdir(parents=True, exist_ok=True)


def write_secret(directory: RunDirectory) -> None:
    """A fresh one, for nobody else's eyes."""
    descriptor = os.open(directory.secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secrets.token_hex(_SECRET_BYTES))


def graph_run_directory(working_dir: Path, graph_name: str) -> RunDirectory:
    return RunDirectory(working_dir / RUN_DIR / graph_name)


def service_run_directory(working_dir: Path, graph_name: str, service: str) -> RunDirectory:
    """For a service that joins a running graph: next to the graph's own, one for each supervisor."""
    return RunDirectory(working_dir / RUN_DIR / f"{graph_name}-{service}-{os.getpid()}")


@contextmanager
def opened(directory: RunDirectory, working_dir: Path) -> Iterator[None]:
    """Makes the directory, emptied of what an earlier run left, and removes it at the end.

    Raises:
        WorkingDirectoryError: it cannot be written.
    """
    shutil.rmtree(directory.path, ignore_errors=True)
    try:
        directory.make()
    except OSError as error:
        raise WorkingDirectoryError(str(working_dir), error.strerror or str(error)) from error
    try:
        yield
    finally:
        shutil.rmtree(directory.path, ignore_errors=True)


@contextmanager
def locked(working_dir: Path, graph_name: str) -> Iterator[None]:
    """Keeps a second run of the same graph out of this working directory.

    The lock goes with the process, so a supervisor that was killed never blocks the next. The file stays:
    removing it would let two processes lock two files of the same name.

    Raises:
        AlreadyRunningError: another process holds it.
        WorkingDirectoryError: it cannot be written.
    """
    path = working_dir / RUN_DIR / f"{graph_name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise WorkingDirectoryError(str(working_dir), error.strerror or str(error)) from error
    try:
        _take_lock(lock, working_dir, graph_name)
        yield
    finally:
        os.close(lock)


def _take_lock(lock: int, working_dir: Path, graph_name: str) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        running = read_run_info(run_info_path(working_dir, graph_name))
        where = f"pid {running.pid}, {running.url}" if running else "it is just starting or stopping"
        raise AlreadyRunningError(graph_name, where) from error
