import pytest

from pic_worker.core.compute_work import ComputeRuns, Run, runs_between


def test_runs_are_what_is_not_loaded() -> None:
    assert runs_between(4, 20, [Run(6, 8), Run(8, 10), Run(15, 20)]) == [Run(4, 6), Run(10, 15)]
    assert runs_between(4, 20, []) == [Run(4, 20)]
    assert runs_between(4, 4, []) == []


def test_work_is_taken_in_pieces_across_runs() -> None:
    runs = ComputeRuns([Run(0, 4), Run(10, 14)])
    assert runs.left_tokens == 8
    taken = runs.take(6)
    # 4 tokens behind nothing: 4 * 2 pairs; 2 tokens behind 10: 2 * (10 + 1).
    assert taken.num_tokens == 6
    assert taken.attention_pairs == pytest.approx(4 * 2 + 2 * 11)
    assert (runs.frontier, runs.num_finished, runs.left_tokens) == (12, 1, 2)
    assert runs.take(100).num_tokens == 2
    assert (runs.frontier, runs.num_finished, runs.left_tokens) == (None, 2, 0)


def test_the_frontier_jumps_over_what_is_loaded() -> None:
    runs = ComputeRuns([Run(0, 4), Run(10, 14)])
    runs.take(4)
    assert runs.frontier == 10


def test_nothing_to_compute_gives_nothing() -> None:
    runs = ComputeRuns([])
    assert (runs.frontier, runs.take(10)) == (None, (0, 0.0))
