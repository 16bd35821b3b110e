"""Workload traces: which segments each request's prompt is made of, in replay order."""

from itertools import accumulate, pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from nebula_bench.errors import TraceError
from nebula_bench.line_file import numbered_lines

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
    for number, line in numbered_lines(path):
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
