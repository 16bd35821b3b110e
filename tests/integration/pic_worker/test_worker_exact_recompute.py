"""Recomputing everything that is reused equals full prefill bit for bit, wherever the segments stand."""

import pytest
from support.connected_engine import BLOCK_TOKENS, MAX_BATCH_TOKENS, ConnectedEngine, Ran, assert_same_kv
from support.passages import Prompt, passage
from support.reuse import learn, loaded

from nebula_protocol.fusion import FULL_FUSION, NO_FUSION

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

A, B, C = passage(1, 60), passage(2, 75), passage(3, 90)
SYSTEM, QUESTION = passage(4, 21), passage(5, 26)


def compare(engine: ConnectedEngine, prompt: Prompt, *, salt: str = "reuse", last_alone: bool = False) -> Ran:
    """Computes the prompt in full and with reuse, and demands the same.

    Args:
        last_alone: compute the last token by itself in both: a product with a single row rounds differently.
    """
    if last_alone:
        assert len(prompt.tokens) % BLOCK_TOKENS == 1
        engine.run([*prompt.tokens[:-1], 9], salt="reference")
    reference = engine.run_for_kv(prompt.tokens, salt="reference")
    ran = engine.run_for_kv(prompt.tokens, prompt.spans, salt=salt, fusion=FULL_FUSION)
    assert reference.told.device_prefix_tokens == (len(prompt.tokens) - 1 if last_alone else 0)
    assert_same_kv(ran.kv, reference.kv)
    assert ran.answer == reference.answer
    assert ran.told.is_whole
    return ran


def test_segments_in_another_order(engine: ConnectedEngine) -> None:
    learn(engine, A, B, C)
    ran = compare(engine, Prompt.of(SYSTEM, C, A, B, QUESTION, gaps=(0, 4)))
    assert loaded(ran) == [len(C), len(A), len(B)]
    # 225 tokens of segments and the 21 before them do not fit into the 96 of one step.
    assert ran.told.num_steps > 1


def test_segments_with_gaps_between_them(engine: ConnectedEngine) -> None:
    learn(engine, A, B)
    ran = compare(engine, Prompt.of(SYSTEM, B, passage(6, 11), A, QUESTION, gaps=(0, 2, 4)))
    assert loaded(ran) == [len(B), len(A)]


def test_adjacent_segments_behind_an_unknown_one(engine: ConnectedEngine) -> None:
    learn(engine, A, B)
    ran = compare(engine, Prompt.of(SYSTEM, C, B, A, QUESTION, gaps=(0, 4)))
    assert loaded(ran) == [0, len(B), len(A)]
    assert [fact.was_absent for fact in ran.told.segments] == [True, False, False]
    assert ran.told.segments[0].is_stored


def test_the_same_segment_twice_in_a_prompt(engine: ConnectedEngine) -> None:
    learn(engine, A)
    ran = compare(engine, Prompt.of(SYSTEM, A, passage(6, 7), A, QUESTION, gaps=(0, 2, 4)))
    assert loaded(ran) == [len(A), len(A)]


def test_a_segment_at_position_zero(engine: ConnectedEngine) -> None:
    learn(engine, A)
    ran = compare(engine, Prompt.of(A, QUESTION, gaps=(1,)))
    assert loaded(ran) == [len(A)]


def test_a_segment_that_ends_with_the_last_token(engine: ConnectedEngine) -> None:
    learn(engine, A, B)
    # 26 + 60 + 75 = 5 * 32 + 1 tokens.
    ran = compare(engine, Prompt.of(QUESTION, A, B, gaps=(0,)), last_alone=True)
    # The last token is computed for its logits.
    assert loaded(ran) == [len(A), len(B) - 1]


def test_a_prompt_that_is_nothing_but_segments(engine: ConnectedEngine) -> None:
    learn(engine, A, B, C)
    # 75 + 90 + 60 = 7 * 32 + 1 tokens.
    ran = compare(engine, Prompt.of(B, C, A), last_alone=True)
    assert loaded(ran) == [len(B), len(C), len(A) - 1]
    assert ran.told.computed_tokens == len(A + B + C)


@pytest.mark.parametrize("num_prefix_blocks", [1, 3, 5])
def test_a_prefix_hit_that_covers_some_segments(engine: ConnectedEngine, num_prefix_blocks: int) -> None:
    learn(engine, A, B, C)
    prompt = Prompt.of(SYSTEM, A, B, C, QUESTION, gaps=(0, 4))
    prefix_tokens = num_prefix_blocks * BLOCK_TOKENS
    engine.run(prompt.tokens[: prefix_tokens + 1], salt="reuse")
    ran = compare(engine, prompt)
    assert ran.told.device_prefix_tokens == prefix_tokens
    covered = [max(0, min(prefix_tokens, end) - start) for start, end in prompt.spans]
    assert [fact.prefix_tokens for fact in ran.told.segments] == covered
    assert loaded(ran) == [end - start - gone for (start, end), gone in zip(prompt.spans, covered, strict=True)]


def test_a_prefix_hit_that_covers_all_segments(engine: ConnectedEngine) -> None:
    learn(engine, A, B)
    prompt = Prompt.of(SYSTEM, A, B, passage(7, 40), gaps=(0, 3))
    engine.run(prompt.tokens, salt="reuse")
    ran = compare(engine, prompt)
    assert loaded(ran) == [0, 0]
    assert [fact.prefix_tokens for fact in ran.told.segments] == [len(A), len(B)]


def test_a_chunk_of_the_engines_own_prefill_that_ends_inside_a_segment(engine: ConnectedEngine) -> None:
    """The unknown segment lies across the boundary, and is kept all the same."""
    learn(engine, A)
    long = passage(8, 200)
    prompt = Prompt.of(SYSTEM, A, passage(9, 60), long, QUESTION, gaps=(0, 2, 4))
    assert prompt.spans[1][0] < len(SYSTEM + A) + MAX_BATCH_TOKENS < prompt.spans[1][1]
    ran = compare(engine, prompt)
    assert loaded(ran) == [len(A), 0]
    again = compare(engine, Prompt.of(passage(10, 50), long, QUESTION, gaps=(0, 2)), salt="again")
    assert loaded(again) == [len(long)]


def test_a_prompt_of_one_token_behind_the_prefix(engine: ConnectedEngine) -> None:
    learn(engine, A)
    prompt = Prompt.of(passage(11, BLOCK_TOKENS - len(A) % BLOCK_TOKENS), A, [7], gaps=(0, 2))
    engine.run(prompt.tokens, salt="reuse")
    ran = compare(engine, prompt, last_alone=True)
    assert (ran.told.device_prefix_tokens, loaded(ran)) == (len(prompt.tokens) - 1, [0])


def test_without_recomputation_the_kv_is_another(engine: ConnectedEngine) -> None:
    """Or else the tests above could not fail."""
    learn(engine, A, B)
    prompt = Prompt.of(SYSTEM, B, A, QUESTION, gaps=(0, 3))
    reference = engine.run_for_kv(prompt.tokens, salt="reference")
    ran = engine.run_for_kv(prompt.tokens, prompt.spans, salt="reuse", fusion=NO_FUSION)
    assert loaded(ran) == [len(B), len(A)]
    with pytest.raises(AssertionError, match="differ at"):
        assert_same_kv(ran.kv, reference.kv)
