"""From a foreign trace to a file that replay and benchmarks read."""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import assert_never

import msgspec

from nebula_bench.errors import TraceError
from nebula_bench.paper.ideal import ideal_hit_ratio
from nebula_bench.trace_import.mooncake import read_mooncake
from nebula_bench.trace_import.ragpulse import read_ragpulse
from nebula_bench.trace_import.trace_file import write_trace
from nebula_bench.workload import TraceRequest
from nebula_protocol.cut_settings import CutSettings


class TraceFormat(StrEnum):
    RAGPULSE = "ragpulse"
    MOONCAKE = "mooncake"


class ImportedTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What an import has written."""

    num_requests: int
    num_left_out: int
    """Longer than allowed."""
    prompt_tokens: int
    longest_prompt_tokens: int
    ideal_hit_ratio: float
    """Share of the tokens in segments that some earlier request had too: the most that any cache could reuse."""

    @property
    def mean_prompt_tokens(self) -> float:
        return self.prompt_tokens / self.num_requests


def read_foreign(
    trace_format: TraceFormat, path: Path, workload: str, *, block_size_tokens: int
) -> Iterator[TraceRequest]:
    """
    Raises:
        TraceError: a file cannot be read, or a line has another form.
    """
    match trace_format:
        case TraceFormat.RAGPULSE:
            return read_ragpulse(path, workload)
        case TraceFormat.MOONCAKE:
            return read_mooncake(path, workload, block_size_tokens)
        case _:
            assert_never(trace_format)


def import_trace(
    requests: Iterable[TraceRequest],
    output: Path,
    *,
    limit: int | None = None,
    max_prompt_tokens: int | None = None,
    on_request: Callable[[TraceRequest], None] = lambda _: None,
) -> ImportedTrace:
    """Writes the first `limit` of the requests that are short enough.

    Raises:
        TraceError: a request cannot be read, none is left, or `output` cannot be written.
    """
    num_left_out = 0

    def short_enough() -> Iterator[TraceRequest]:
        nonlocal num_left_out
        for request in requests:
            on_request(request)
            if max_prompt_tokens is None or request.prompt_tokens <= max_prompt_tokens:
                yield request
            else:
                num_left_out += 1

    kept = tuple(islice(short_enough(), limit))
    if not kept:
        reason = f"none of {num_left_out} requests is short enough" if num_left_out else "no request to import"
        raise TraceError(str(output), reason)
    write_trace(output, kept)
    lengths = [request.prompt_tokens for request in kept]
    return ImportedTrace(
        num_requests=len(kept),
        num_left_out=num_left_out,
        prompt_tokens=sum(lengths),
        longest_prompt_tokens=max(lengths),
        ideal_hit_ratio=ideal_hit_ratio(kept, CutSettings().min_segment_tokens),
    )
