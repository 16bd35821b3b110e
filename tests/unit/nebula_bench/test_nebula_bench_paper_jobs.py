"""Jobs that are remembered."""

from pathlib import Path

import pytest
from pydantic import BaseModel

from nebula_bench.errors import ResultsError
from nebula_bench.paper.ideal import ideal_hit_ratio
from nebula_bench.paper.jobs import Jobs
from nebula_bench.workload import TraceRequest, TraceSegment


class Double(BaseModel):
    number: int


class Counted:
    """Doubles, and counts how often it was asked."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, job: Double) -> int:
        self.num_calls += 1
        return 2 * job.number


def jobs_of(counted: Counted, memory: Path | None, commit: str = "a") -> Jobs[Double, int]:
    return Jobs(counted, int, num_processes=1, commit=commit, memory=memory)


def test_results_come_in_the_order_of_the_jobs_and_each_is_computed_once() -> None:
    counted = Counted()
    assert jobs_of(counted, None).run([Double(number=3), Double(number=1), Double(number=3)]) == [6, 2, 6]
    assert counted.num_calls == 2


def test_what_an_interrupted_run_had_computed_is_not_computed_again(tmp_path: Path) -> None:
    memory = tmp_path / "out" / "memory.jsonl"
    jobs_of(Counted(), memory).run([Double(number=1)])
    later = Counted()
    finished: list[Double] = []
    assert jobs_of(later, memory).run([Double(number=1), Double(number=2)], finished.append) == [2, 4]
    assert later.num_calls == 1
    assert finished == [Double(number=1), Double(number=2)]


def test_results_of_other_code_are_not_used(tmp_path: Path) -> None:
    memory = tmp_path / "memory.jsonl"
    jobs_of(Counted(), memory, commit="a").run([Double(number=1)])
    later = Counted()
    jobs_of(later, memory, commit="b").run([Double(number=1)])
    assert later.num_calls == 1


def test_a_memory_that_is_something_else_is_an_error(tmp_path: Path) -> None:
    memory = tmp_path / "memory.jsonl"
    memory.write_text("not json\n")
    with pytest.raises(ResultsError, match=r"memory\.jsonl"):
        jobs_of(Counted(), memory)


def test_the_ideal_counts_whole_segments_that_came_before() -> None:
    def request(*segments: tuple[str, int]) -> TraceRequest:
        parts = tuple(TraceSegment("part", name, tokens) for name, tokens in segments)
        return TraceRequest(workload="w", index=0, session="s", segments=parts)

    trace = [request(("a", 100), ("b", 20)), request(("a", 100), ("b", 20)), request(("c", 60))]
    # Of 300 tokens the second request's 100 of a; b is too short for an entry.
    assert ideal_hit_ratio(trace, min_segment_tokens=32) == pytest.approx(100 / 300)
    assert ideal_hit_ratio(trace, min_segment_tokens=1) == pytest.approx(120 / 300)
