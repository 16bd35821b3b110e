"""Logits of first tokens, taken out of vLLM's batch as its rows come, move and go."""

import numpy as np
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from nebula_bench.adapters.vllm.first_logits import CAPTURE_KEY, capture_first_logits
from nebula_bench.quality.engine import Logits

Added = tuple[int, SamplingParams, list[int] | None, list[int]]
Moved = tuple[int, int, MoveDirectionality]


class Batch:
    """Row r of step s has the logits [s, r]."""

    def __init__(self) -> None:
        self.taken: dict[str, Logits] = {}
        self._step = 0
        kind = capture_first_logits(self.taken.__setitem__)
        self.processor: LogitsProcessor = kind(VllmConfig(), torch.device("cpu"), False)

    def step(
        self, *, added: tuple[Added, ...] = (), removed: tuple[int, ...] = (), moved: tuple[Moved, ...] = ()
    ) -> torch.Tensor:
        self._step += 1
        self.processor.update_state(BatchUpdate(batch_size=4, removed=removed, added=added, moved=moved))
        logits = torch.tensor([[self._step, row] for row in range(4)], dtype=torch.bfloat16)
        return self.processor.apply(logits)


def named(name: str, row: int, answer: list[int]) -> Added:
    return row, SamplingParams(extra_args={CAPTURE_KEY: name}), [1, 2], answer


def test_the_first_token_s_logits_are_kept_and_later_ones_are_not() -> None:
    batch, answer = Batch(), list[int]()
    batch.step(added=(named("a", 2, answer),))
    answer.append(7)
    batch.step()
    np.testing.assert_array_equal(batch.taken["a"], [1, 2])
    assert batch.taken["a"].dtype == np.float32


def test_of_a_prompt_in_several_steps_the_last_one_counts() -> None:
    batch, answer = Batch(), list[int]()
    batch.step(added=(named("a", 0, answer),))
    batch.step()
    answer.append(7)
    batch.step()
    np.testing.assert_array_equal(batch.taken["a"], [2, 0])


def test_a_row_is_followed_where_it_moves() -> None:
    batch = Batch()
    batch.step(added=(named("a", 0, []), named("b", 3, [])))
    batch.step(moved=((3, 0, MoveDirectionality.SWAP),))
    assert (batch.taken["a"].tolist(), batch.taken["b"].tolist()) == ([2, 3], [2, 0])
    batch.step(removed=(0,), moved=((3, 1, MoveDirectionality.UNIDIRECTIONAL),))
    assert (batch.taken["a"].tolist(), batch.taken["b"].tolist()) == ([3, 1], [2, 0])


def test_a_row_that_another_request_takes_over_is_not_watched_any_more() -> None:
    batch = Batch()
    batch.step(added=(named("a", 1, []),))
    batch.step(added=((1, SamplingParams(), None, []),))
    assert batch.taken["a"].tolist() == [1, 1]


def test_nothing_of_the_logits_is_changed_and_greedy_requests_are_seen_too() -> None:
    batch = Batch()
    logits = batch.step(added=(named("a", 1, []),))
    assert logits.tolist() == [[1, 0], [1, 1], [1, 2], [1, 3]]
    assert not batch.processor.is_argmax_invariant()
