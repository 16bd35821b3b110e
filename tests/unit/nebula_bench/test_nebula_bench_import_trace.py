"""What an import writes, and what it says of it."""

import gzip
from pathlib import Path

import pytest
from support.small_traces import request

from nebula_bench.errors import TraceError
from nebula_bench.trace_import.importing import import_trace
from nebula_bench.trace_import.trace_file import write_trace
from nebula_bench.workload import read_trace

REQUESTS = (
    request(0, ("a", 100), ("b", 50)),
    request(1, ("a", 100), ("c", 300)),
    request(2, ("a", 100), ("short", 20), ("short", 20)),
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    for name in ("plain.jsonl", "packed.jsonl.gz"):
        write_trace(tmp_path / "new" / name, REQUESTS)
        assert read_trace(tmp_path / "new" / name) == REQUESTS


def test_only_a_name_that_ends_in_gz_is_packed_and_equal_traces_are_equal_files(tmp_path: Path) -> None:
    write_trace(tmp_path / "plain.jsonl", REQUESTS)
    write_trace(tmp_path / "one.gz", REQUESTS)
    write_trace(tmp_path / "two.gz", REQUESTS)
    packed = (tmp_path / "one.gz").read_bytes()
    assert packed == (tmp_path / "two.gz").read_bytes()
    assert gzip.decompress(packed) == (tmp_path / "plain.jsonl").read_bytes()


def test_the_summary_counts_what_was_written(tmp_path: Path) -> None:
    imported = import_trace(REQUESTS, tmp_path / "t.jsonl")
    assert (imported.num_requests, imported.num_left_out) == (3, 0)
    assert (imported.prompt_tokens, imported.longest_prompt_tokens) == (150 + 400 + 140, 400)
    assert imported.mean_prompt_tokens == 230
    # The second and the third request have a's 100 tokens again; `short` is too short for a segment.
    assert imported.ideal_hit_ratio == pytest.approx(200 / 690)


def test_prompts_that_are_too_long_are_left_out_and_counted(tmp_path: Path) -> None:
    imported = import_trace(REQUESTS, tmp_path / "t.jsonl", max_prompt_tokens=200)
    assert (imported.num_requests, imported.num_left_out) == (2, 1)
    assert [one.index for one in read_trace(tmp_path / "t.jsonl")] == [0, 2]


def test_the_limit_counts_requests_that_are_kept(tmp_path: Path) -> None:
    import_trace(reversed(REQUESTS), tmp_path / "t.jsonl", limit=2, max_prompt_tokens=200)
    assert [one.index for one in read_trace(tmp_path / "t.jsonl")] == [2, 0]


def test_every_request_that_is_read_is_told(tmp_path: Path) -> None:
    told: list[int] = []
    import_trace(REQUESTS, tmp_path / "t.jsonl", max_prompt_tokens=200, on_request=lambda one: told.append(one.index))
    assert told == [0, 1, 2]


def test_an_import_that_leaves_nothing_is_an_error_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="none of 3 requests is short enough"):
        import_trace(REQUESTS, tmp_path / "t.jsonl", max_prompt_tokens=10)
    with pytest.raises(TraceError, match="no request to import"):
        import_trace((), tmp_path / "t.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TraceError, match=r"t\.jsonl: "):
        write_trace(tmp_path / "file" / "t.jsonl", REQUESTS)
