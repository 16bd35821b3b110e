"""Traces: what a line must be, and errors that name the line."""

import gzip
from pathlib import Path

import pytest

from nebula_bench.errors import TraceError
from nebula_bench.workload import TraceSegment, read_trace

FIRST = (
    '{"w":"demo","i":0,"sid":"s0","t":1.5,"out":7,"segs":[{"kind":"system","id":"a","tokens":3},'
    '{"kind":"user","id":"b","tokens":5}]}'
)
SECOND = '{"w":"demo","i":1,"sid":"s0","t":null,"out":null,"extra":1,"segs":[{"kind":"user","id":"c","tokens":2}]}'


def write_trace(folder: Path, text: str) -> Path:
    path = folder / "demo.trace.jsonl"
    path.write_text(text)
    return path


def test_a_line_becomes_a_request_with_its_segments(tmp_path: Path) -> None:
    (request,) = read_trace(write_trace(tmp_path, FIRST))
    assert (request.workload, request.index, request.session) == ("demo", 0, "s0")
    assert (request.arrival_s, request.output_tokens) == (1.5, 7)
    assert request.segments == (TraceSegment("system", "a", 3), TraceSegment("user", "b", 5))
    assert request.prompt_tokens == 3 + 5
    assert request.spans() == ((0, 3), (3, 8))


def test_missing_times_unknown_keys_and_blank_lines_are_taken(tmp_path: Path) -> None:
    requests = read_trace(write_trace(tmp_path, f"{FIRST}\n\n{SECOND}\n"))
    assert [request.index for request in requests] == [0, 1]
    assert requests[1].arrival_s is None


def test_a_packed_trace_is_recognised_by_its_content_not_its_name(tmp_path: Path) -> None:
    path = tmp_path / "demo.trace"
    path.write_bytes(gzip.compress(f"{FIRST}\n{SECOND}".encode()))
    assert len(read_trace(path)) == 2


def test_only_the_first_requests_are_read_even_when_a_later_line_is_broken(tmp_path: Path) -> None:
    assert len(read_trace(write_trace(tmp_path, f"{FIRST}\n{SECOND}\nbroken"), limit=2)) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nonsense", "malformed"),
        ('{"w":"demo","i":1,"sid":"s0"}', "segs"),
        ('{"w":"demo","i":1,"sid":"s0","segs":[]}', "length"),
        ('{"w":"demo","i":1,"sid":"s0","segs":[{"kind":"user","id":"c","tokens":0}]}', ">= 1"),
        ('{"w":"demo","i":1,"sid":"s0","segs":[{"kind":"user","id":"","tokens":1}]}', "length"),
        ('{"w":"demo","i":1,"sid":"s0","segs":[{"kind":"user","id":7,"tokens":1}]}', "str"),
    ],
)
def test_a_line_that_is_no_request_is_named_with_its_number(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(TraceError, match=reason) as caught:
        read_trace(write_trace(tmp_path, f"{FIRST}\n{line}\n"))
    assert caught.value.line == 2
    assert "line 2" in str(caught.value)


def test_a_trace_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no request"):
        read_trace(write_trace(tmp_path, "\n"))


def test_a_missing_file_and_a_torn_archive_are_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "nothing.jsonl")
    torn = tmp_path / "torn.jsonl.gz"
    torn.write_bytes(gzip.compress(FIRST.encode())[:-4])
    with pytest.raises(TraceError, match=r"torn\.jsonl\.gz"):
        read_trace(torn)
