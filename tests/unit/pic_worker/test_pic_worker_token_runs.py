"""Positions cut into runs and pieces."""

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from pic_worker.adapters.vllm.token_runs import positions_of, runs_of, split_positions


def pairs(positions: list[int]) -> list[tuple[int, int]]:
    runs = runs_of(torch.tensor(positions))
    return list(zip(runs.begins.tolist(), runs.ends.tolist(), strict=True))


def pieces(positions: list[int], max_tokens: int, max_runs: int) -> list[list[int]]:
    split = split_positions(torch.tensor(positions), max_tokens=max_tokens, max_runs=max_runs)
    return [piece.tolist() for piece in split]


def test_neighbours_are_one_run() -> None:
    assert pairs([4, 5, 6, 9, 11, 12]) == [(4, 7), (9, 10), (11, 13)]
    assert pairs([3]) == [(3, 4)]


def test_runs_give_their_positions_back() -> None:
    assert positions_of([(4, 7), (9, 10)]).tolist() == [4, 5, 6, 9]
    assert positions_of([]).tolist() == []


def test_a_piece_has_at_most_so_many_tokens() -> None:
    assert pieces([0, 1, 2, 3, 8, 9, 10], max_tokens=3, max_runs=9) == [[0, 1, 2], [3, 8, 9], [10]]


def test_a_piece_has_at_most_so_many_runs() -> None:
    assert pieces([0, 1, 4, 5, 8, 9], max_tokens=5, max_runs=2) == [[0, 1, 4, 5], [8, 9]]


def test_no_positions_are_no_piece() -> None:
    assert pieces([], max_tokens=3, max_runs=2) == []


def test_short_runs_come_first_in_their_order() -> None:
    runs = runs_of(torch.tensor([0, 1, 2, 5, 8, 9, 20])).short_first(1)
    assert list(zip(runs.begins.tolist(), runs.ends.tolist(), strict=True)) == [(5, 6), (20, 21), (0, 3), (8, 10)]
    assert runs.positions.tolist() == [5, 20, 0, 1, 2, 8, 9]
