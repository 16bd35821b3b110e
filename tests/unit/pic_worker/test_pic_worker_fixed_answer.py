"""The simulated engine's answer, which goes on wherever it was broken off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pic_worker.core.fixed_answer import FixedAnswer

PROMPT = [100, 101, 102]
# Answers within which tokens and whole passages come again: those where a wrong place looks right.
ANSWERS = [(40,), (40, 40), (40, 41, 42), (40, 41, 40), (40, 40, 41), (40, 41, 40, 41, 42), (40, 41, 40, 41)]

answers = st.lists(st.integers(0, 3), min_size=1, max_size=6)
prompts = st.lists(st.integers(0, 5), max_size=12)


def said(answer: FixedAnswer, num_tokens: int) -> list[int]:
    return [answer.token(index) for index in range(num_tokens)]


def test_the_answer_is_its_tokens_over_and_over() -> None:
    assert said(FixedAnswer((40, 41, 42)), 7) == [40, 41, 42, 40, 41, 42, 40]


@pytest.mark.parametrize("token_ids", ANSWERS, ids=repr)
@pytest.mark.parametrize("cut", range(14))
def test_an_answer_goes_on_where_it_was_broken_off(token_ids: tuple[int, ...], cut: int) -> None:
    answer, whole = FixedAnswer(token_ids), said(FixedAnswer(token_ids), 20)
    num_before = answer.num_said(PROMPT + whole[:cut])
    assert whole[:cut] + [answer.token(index) for index in range(num_before, num_before + 20 - cut)] == whole


@pytest.mark.parametrize(
    "tokens", [[], [100], [40, 41, 42, 100], [100, 41], [100, 42], [100, 41, 42], [42, 41]], ids=repr
)
def test_what_does_not_begin_the_answer_at_its_end_is_none_of_it(tokens: list[int]) -> None:
    assert FixedAnswer((40, 41, 42)).num_said(tokens) == 0


def test_tokens_of_the_answer_within_the_prompt_are_not_said_yet() -> None:
    assert FixedAnswer((40, 41, 42)).num_said([40, 41, 42, 100, 40, 41]) == 2


def test_a_prompt_that_is_nothing_but_answer_counts_whole() -> None:
    assert FixedAnswer((40, 41, 42)).num_said([40, 41, 42, 40]) == 4


@given(answer=answers, prompt=prompts, num_tokens=st.integers(0, 30))
def test_behind_a_prompt_that_ends_otherwise_all_that_was_said_is_found(
    answer: list[int], prompt: list[int], num_tokens: int
) -> None:
    fixed = FixedAnswer(answer)
    # Answers have no token over 3.
    assert fixed.num_said([*prompt, 4, *said(fixed, num_tokens)]) == num_tokens


@given(answer=answers, tokens=prompts)
def test_no_tokens_that_begin_the_answer_are_overlooked(answer: list[int], tokens: list[int]) -> None:
    fixed = FixedAnswer(answer)
    lengths = [length for length in range(len(tokens) + 1) if tokens[len(tokens) - length :] == said(fixed, length)]
    assert fixed.num_said(tokens) == max(lengths)
