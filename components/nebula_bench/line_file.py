"""Files with a record a line, plain or gzip."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from nebula_bench.errors import TraceError

_GZIP_MAGIC = b"\x1f\x8b"


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, from 1; gzip is recognised by its content, not by the name.

    Raises:
        TraceError: the file cannot be read.
    """
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            raw.seek(0)
            if is_gzip:
                with gzip.open(raw) as unpacked:
                    yield from enumerate(unpacked, start=1)
            else:
                yield from enumerate(raw, start=1)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(str(path), reason) from error
