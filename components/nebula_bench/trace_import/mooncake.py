"""Mooncake's traces: lengths, and an id for each block of the prompt.

Published with Qin et al., FAST 2025 (https://github.com/kvcache-ai/Mooncake, FAST25-release/traces); Dynamo's tools
write the same form, also with blocks of other sizes. An id stands for a block together with everything before it, so
such a trace shows what prefixes have in common and no other reuse.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from nebula_bench.errors import TraceError
from nebula_bench.trace_import.record import read_records
from nebula_bench.workload import TraceRequest, TraceSegment

BLOCK_SIZE_TOKENS = 512
_MS_PER_S = 1000


class _Line(msgspec.Struct, frozen=True):
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    hash_ids: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    timestamp: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """Milliseconds from the first request."""
    output_length: Annotated[int, msgspec.Meta(ge=0)] | None = None
    session_id: str | None = None
    """Not in Mooncake's own files; Dynamo's have it for requests of one conversation."""


def read_mooncake(path: Path, workload: str, block_size_tokens: int = BLOCK_SIZE_TOKENS) -> Iterator[TraceRequest]:
    """Each block becomes a segment; where the last one has no id, its tokens are a segment of their own.

    Raises:
        TraceError: a line has another form, or its ids do not make up its length.
    """
    for index, (number, line) in enumerate(read_records(path, _Line)):
        segments = _segments(line, index, block_size_tokens)
        if segments is None:
            num_blocks = -(-line.input_length // block_size_tokens)
            raise TraceError(
                str(path),
                f"hash_ids: {len(line.hash_ids)} blocks of {block_size_tokens} tokens are not what input_length "
                f"{line.input_length} takes, {num_blocks}; is the block size another one?",
                number,
            )
        yield TraceRequest(
            workload=workload,
            index=index,
            session=f"s{index}" if line.session_id is None else line.session_id,
            segments=segments,
            arrival_s=None if line.timestamp is None else line.timestamp / _MS_PER_S,
            output_tokens=line.output_length,
        )


def _segments(line: _Line, index: int, block_size_tokens: int) -> tuple[TraceSegment, ...] | None:
    """None where the number of ids does not fit the length."""
    full, rest_tokens = divmod(line.input_length, block_size_tokens)
    num_ids = len(line.hash_ids)
    if num_ids not in (full, full + (rest_tokens > 0)):
        return None
    segments = [TraceSegment("block", f"mc-{block}", block_size_tokens) for block in line.hash_ids[:full]]
    if rest_tokens:
        # With its length in the name: equal names must be equal tokens, whatever a file gives the same id to.
        name = f"mc-{line.hash_ids[full]}-{rest_tokens}" if num_ids > full else f"mc-rest-{index}"
        segments.append(TraceSegment("block", name, rest_tokens))
    return tuple(segments)
