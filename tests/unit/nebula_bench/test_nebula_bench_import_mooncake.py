"""Mooncake's traces: blocks become segments."""

from pathlib import Path

import pytest
from support.foreign_traces import mooncake_line, write_lines

from nebula_bench.errors import TraceError
from nebula_bench.trace_import.mooncake import read_mooncake
from nebula_bench.workload import TraceRequest, TraceSegment


def read(folder: Path, *lines: object, block_size_tokens: int = 512) -> list[TraceRequest]:
    return list(read_mooncake(write_lines(folder / "trace.jsonl", lines), "moon", block_size_tokens))


def sizes(request: TraceRequest) -> list[tuple[str, int]]:
    return [(segment.id, segment.tokens) for segment in request.segments]


def test_each_block_is_a_segment_and_times_are_seconds(tmp_path: Path) -> None:
    (request,) = read(tmp_path, mooncake_line(1024, [0, 14]))
    assert request.segments == (TraceSegment("block", "mc-0", 512), TraceSegment("block", "mc-14", 512))
    assert (request.workload, request.index, request.session) == ("moon", 0, "s0")
    assert (request.arrival_s, request.output_tokens) == (3.052, 7)


def test_the_last_block_is_as_long_as_what_is_left(tmp_path: Path) -> None:
    (request,) = read(tmp_path, mooncake_line(6955, range(14)))
    # 13 * 512 = 6656, and 299 are left.
    assert request.prompt_tokens == 6955
    assert sizes(request)[-1] == ("mc-13-299", 299)


def test_a_block_is_not_mixed_up_with_a_shorter_one_of_the_same_id(tmp_path: Path) -> None:
    whole, part = read(tmp_path, mooncake_line(1024, [0, 5]), mooncake_line(600, [0, 5]))
    assert sizes(whole)[0] == sizes(part)[0]
    assert sizes(whole)[1] != sizes(part)[1]


def test_a_rest_without_an_id_belongs_to_its_request_alone(tmp_path: Path) -> None:
    first, second = read(tmp_path, mooncake_line(600, [0]), mooncake_line(600, [0]))
    assert sizes(first) == [("mc-0", 512), ("mc-rest-0", 88)]
    assert sizes(second)[1] == ("mc-rest-1", 88)


def test_a_prompt_shorter_than_a_block_needs_no_id(tmp_path: Path) -> None:
    (request,) = read(tmp_path, mooncake_line(30, []))
    assert sizes(request) == [("mc-rest-0", 30)]


def test_blocks_may_have_another_size(tmp_path: Path) -> None:
    (request,) = read(tmp_path, mooncake_line(40, [1, 2, 3]), block_size_tokens=16)
    assert [segment.tokens for segment in request.segments] == [16, 16, 8]


def test_requests_of_one_session_stay_together_and_may_have_no_time(tmp_path: Path) -> None:
    line = {"input_length": 512, "hash_ids": [0], "session_id": "chat"}
    (request,) = read(tmp_path, line)
    assert (request.session, request.arrival_s, request.output_tokens) == ("chat", None, None)


@pytest.mark.parametrize("hash_ids", [[0], [0, 1, 2, 3]])
def test_ids_that_do_not_make_up_the_length_are_refused_with_the_line(tmp_path: Path, hash_ids: list[int]) -> None:
    with pytest.raises(TraceError, match=r"trace\.jsonl, line 2: hash_ids: .* input_length 1200 takes, 3"):
        read(tmp_path, mooncake_line(512, [0]), mooncake_line(1200, hash_ids))


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"input_length": 0}, "input_length"),
        ({"input_length": "512"}, "input_length"),
        ({"timestamp": -1}, "timestamp"),
        ({"output_length": -1}, "output_length"),
        ({"hash_ids": [0, "a"]}, r"hash_ids\[1\]|hash_ids\[\.\.\.\]"),
        ({"hash_ids": None}, "hash_ids"),
    ],
    ids=str,
)
def test_a_wrong_value_is_named_with_line_and_field(tmp_path: Path, changed: dict[str, object], field: str) -> None:
    with pytest.raises(TraceError, match=rf"trace\.jsonl, line 1: .*{field}"):
        read(tmp_path, mooncake_line(512, [0]) | changed)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"line 1: .*missing required field `hash_ids`"):
        read(tmp_path, {"timestamp": 0, "input_length": 5})
