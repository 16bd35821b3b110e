"""RAGPulse's own files: ids with their lengths from five files beside the trace."""

from pathlib import Path

import pytest
from support.foreign_traces import ragpulse_line, write_lines, write_ragpulse

from nebula_bench.errors import TraceError
from nebula_bench.trace_import.ragpulse import read_ragpulse
from nebula_bench.workload import TraceSegment

FULL = ragpulse_line(
    "a-1", sys_prompt=[90, 91], passages_ids=[7], history=[50], web_search=[70], user_input=[60], output_length=192
)


def test_the_parts_follow_one_another_with_their_lengths(tmp_path: Path) -> None:
    (request,) = read_ragpulse(write_ragpulse(tmp_path, [FULL]), "rag")
    assert request.segments == (
        TraceSegment("system", "rp-s90", 512),
        TraceSegment("system", "rp-s91", 40),
        TraceSegment("passage", "rp-p7", 300),
        TraceSegment("history", "rp-h50", 11),
        TraceSegment("web_search", "rp-w70", 120),
        TraceSegment("user", "rp-u60", 6),
    )
    assert (request.arrival_s, request.output_tokens, request.workload) == (82.0, 192, "rag")


def test_the_folder_will_do_and_times_may_be_numbers(tmp_path: Path) -> None:
    write_ragpulse(tmp_path, [ragpulse_line("a", timestamp=12.5, user_input=[60])])
    (request,) = read_ragpulse(tmp_path, "rag")
    assert request.arrival_s == 12.5


def test_sessions_are_numbered_as_they_appear(tmp_path: Path) -> None:
    lines = [ragpulse_line(session, user_input=[60]) for session in ("y", "x", "y")]
    requests = list(read_ragpulse(write_ragpulse(tmp_path, lines), "rag"))
    assert [(request.index, request.session) for request in requests] == [(0, "s0"), (1, "s1"), (2, "s0")]


def test_parts_without_tokens_are_left_out(tmp_path: Path) -> None:
    (request,) = read_ragpulse(write_ragpulse(tmp_path, [ragpulse_line("a", passages_ids=[8, 7])]), "rag")
    assert [segment.id for segment in request.segments] == ["rp-p7"]


def test_a_prompt_without_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 1: hash_ids: no part of the prompt has a token"):
        list(read_ragpulse(write_ragpulse(tmp_path, [ragpulse_line("a", passages_ids=[8])]), "rag"))


def test_an_id_without_a_length_is_named_with_its_place_and_file(tmp_path: Path) -> None:
    trace = write_ragpulse(tmp_path, [FULL, ragpulse_line("a", passages_ids=[7, 99])])
    with pytest.raises(
        TraceError, match=r"0_trace\.jsonl, line 2: hash_ids\.passages_ids\[1\]: 99 has no length in 2_passages\.jsonl"
    ):
        list(read_ragpulse(trace, "rag"))


def test_a_missing_file_of_lengths_is_named(tmp_path: Path) -> None:
    trace = write_ragpulse(tmp_path, [FULL])
    (tmp_path / "3_history.jsonl").unlink()
    with pytest.raises(TraceError, match=r"3_history\.jsonl: No such file"):
        list(read_ragpulse(trace, "rag"))


def test_a_wrong_line_of_lengths_is_named(tmp_path: Path) -> None:
    trace = write_ragpulse(tmp_path, [FULL])
    write_lines(tmp_path / "2_passages.jsonl", [{"passage_id": 7, "token_length": 3}, {"passage_id": 8}])
    with pytest.raises(TraceError, match=r"2_passages\.jsonl, line 2: .*token_length"):
        list(read_ragpulse(trace, "rag"))


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (ragpulse_line("a", timestamp="soon", user_input=[60]), "timestamp"),
        (ragpulse_line("a", output_length=-3, user_input=[60]), "output_length"),
        ({"timestamp": "1", "session_id": "a"}, "hash_ids"),
        ({"timestamp": "1", "session_id": "a", "hash_ids": {"sys_prompt": []}}, r"passages_ids.*hash_ids"),
    ],
    ids=["timestamp", "output_length", "hash_ids", "passages_ids"],
)
def test_a_wrong_line_is_named_with_its_field(tmp_path: Path, line: object, field: str) -> None:
    with pytest.raises(TraceError, match=rf"0_trace\.jsonl, line 1: .*{field}"):
        list(read_ragpulse(write_ragpulse(tmp_path, [line]), "rag"))
