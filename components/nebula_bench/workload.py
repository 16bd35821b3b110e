"""Workload traces: which segments each request's prompt is made of, in replay order."""

import gzip
import zlib
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from nebula_bench.errors import TraceError

_GZIP_MAGIC = b"\x1f\x8b"

Span = tuple[int, int]
"""Tokens [start, end) of a prompt."""


class TraceSegment(msgspec.Struct, frozen=True, gc=False):
    kind: str
    id: Annotated[str, msgspec.Meta(min_length=1)]
    """Names the content: equal ids are equal token sequences."""
    tokens: Annotated[int, msgspec.Meta(ge=1)]


_WIRE_NAMES = {
    "workload": "w",
    "index": "i",
    "session": "sid",
    "segments": "segs",
    "arrival_s": "t",
    "output_tokens": "out",
}


class TraceRequest(msgspec.Struct, frozen=True, rename=_WIRE_NAMES):
    """One line of a trace; keys that are not named here are ignored."""

    workload: str
    index: Annotated[int, msgspec.Meta(ge=0)]
    session: str
    segments: Annotated[tuple[TraceSegment, ...], msgspec.Meta(min_length=1)]
    arrival_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """Seconds from the first request of the original; arrivals of a replay are drawn anew."""
    output_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """Output tokens of the original."""

    @property
    def prompt_tokens(self) -> int:
        return sum(segment.tokens for segment in self.segments)

    def spans(self) -> tuple[Span, ...]:
        """Where each segment lies in the prompt; they follow one another without gaps."""
        return tuple(pairwise(accumulate((segment.tokens for segment in self.segments), initial=0)))


def read_trace(path: Path, limit: int | None = None) -> tuple[TraceRequest, ...]:
    """The first `limit` requests of a `.jsonl` or `.jsonl.gz` file, or all of them; blank lines are skipped.

    Raises:
        TraceError: the file cannot be read, holds no request, or a line is not a request.
    """
    requests: list[TraceRequest] = []
    decoder = msgspec.json.Decoder(TraceRequest)
    for number, line in _numbered_lines(path):
        if limit is not None and len(requests) >= limit:
            break
        if line.isspace():
            continue
        try:
            requests.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TraceError(str(path), str(error), number) from error
    if not requests:
        raise TraceError(str(path), "no request in it")
    return tuple(requests)


def _numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
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
