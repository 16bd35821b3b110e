"""Writes traces in this project's own form."""

import gzip
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from nebula_bench.errors import TraceError
from nebula_bench.workload import TraceRequest


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """One request a line, packed where the name ends in `.gz`. A reader sees the old file or the whole new one.

    Raises:
        TraceError: the folder or the file cannot be written.
    """
    content = b"".join(msgspec.json.encode(request) + b"\n" for request in requests)
    # Without a time in its head, equal traces are equal files.
    packed = gzip.compress(content, mtime=0) if path.suffix == ".gz" else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        fresh = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(packed)
            fresh.chmod(0o644)
            fresh.replace(path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise TraceError(str(path), error.strerror or str(error)) from error
