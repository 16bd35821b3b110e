"""RAGPulse's own files: a trace of ids, and five files with the ids' lengths.

Wang et al., arXiv 2511.12979 (https://github.com/flashserve/RAGPulse, folder `data`). No text is published.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from nebula_bench.errors import TraceError
from nebula_bench.trace_import.record import read_records
from nebula_bench.workload import TraceRequest, TraceSegment

TRACE_NAME = "0_trace.jsonl"

_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Ids(msgspec.Struct, frozen=True):
    sys_prompt: tuple[int, ...]
    passages_ids: tuple[int, ...]
    history: tuple[int, ...]
    web_search: tuple[int, ...]
    user_input: tuple[int, ...]


class _Line(msgspec.Struct, frozen=True):
    hash_ids: _Ids
    session_id: str
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    """Seconds from the beginning of the trace, written as text."""
    output_length: _Count | None = None


class _PromptLength(msgspec.Struct, frozen=True):
    sys_prompt_id: int
    token_length: _Count


class _PassageLength(msgspec.Struct, frozen=True):
    passage_id: int
    token_length: _Count


class _HistoryLength(msgspec.Struct, frozen=True):
    history_id: int
    token_length: _Count


class _UserInputLength(msgspec.Struct, frozen=True):
    user_input_id: int
    token_length: _Count


class _WebSearchLength(msgspec.Struct, frozen=True):
    web_search_id: int
    token_length: _Count


class _Part(NamedTuple):
    """One of the parts that a prompt is made of."""

    field: str
    """In `hash_ids`."""
    kind: str
    """Of the segments."""
    letter: str
    """In the segments' ids."""
    file: str
    lengths: Mapping[int, int]


def read_ragpulse(path: Path, workload: str) -> Iterator[TraceRequest]:
    """The prompt is system prompt, passages, history, web search and user input, one behind another.

    Args:
        path: `0_trace.jsonl`, or the folder that it is in; the files of lengths are looked for beside it.

    Raises:
        TraceError: a file is missing, a line has another form, or an id's length is in none of them.
    """
    trace = path / TRACE_NAME if path.is_dir() else path
    parts = _read_parts(trace.parent)
    sessions: dict[str, str] = {}
    for index, (number, line) in enumerate(read_records(trace, _Line, strict=False)):
        try:
            segments = tuple(_segments(line.hash_ids, parts))
        except _UnknownIdError as error:
            raise TraceError(str(trace), str(error), number) from error
        if not segments:
            raise TraceError(str(trace), "hash_ids: no part of the prompt has a token", number)
        yield TraceRequest(
            workload=workload,
            index=index,
            session=sessions.setdefault(line.session_id, f"s{len(sessions)}"),
            segments=segments,
            arrival_s=line.timestamp,
            output_tokens=line.output_length,
        )


class _UnknownIdError(Exception):
    pass


def _segments(ids: _Ids, parts: tuple[_Part, ...]) -> Iterator[TraceSegment]:
    named = (ids.sys_prompt, ids.passages_ids, ids.history, ids.web_search, ids.user_input)
    for part, numbers in zip(parts, named, strict=True):
        for place, number in enumerate(numbers):
            if number not in part.lengths:
                raise _UnknownIdError(f"hash_ids.{part.field}[{place}]: {number} has no length in {part.file}")
            if num_tokens := part.lengths[number]:
                yield TraceSegment(part.kind, f"rp-{part.letter}{number}", num_tokens)


def _read_parts(folder: Path) -> tuple[_Part, ...]:
    """In the order in which they make up a prompt."""
    prompts = {one.sys_prompt_id: one.token_length for _, one in read_records(folder / _PROMPTS, _PromptLength)}
    passages = {one.passage_id: one.token_length for _, one in read_records(folder / _PASSAGES, _PassageLength)}
    history = {one.history_id: one.token_length for _, one in read_records(folder / _HISTORY, _HistoryLength)}
    inputs = {one.user_input_id: one.token_length for _, one in read_records(folder / _INPUTS, _UserInputLength)}
    searches = {one.web_search_id: one.token_length for _, one in read_records(folder / _SEARCHES, _WebSearchLength)}
    return (
        _Part("sys_prompt", "system", "s", _PROMPTS, prompts),
        _Part("passages_ids", "passage", "p", _PASSAGES, passages),
        _Part("history", "history", "h", _HISTORY, history),
        _Part("web_search", "web_search", "w", _SEARCHES, searches),
        _Part("user_input", "user", "u", _INPUTS, inputs),
    )


_PROMPTS = "1_sys_prompt.jsonl"
_PASSAGES = "2_passages.jsonl"
_HISTORY = "3_history.jsonl"
_INPUTS = "4_user_input.jsonl"
_SEARCHES = "5_web_search.jsonl"
