"""Exact requests beside reuse, and KV that left the device tier and came back, bit for bit."""

import pytest
from support.connected_engine import BLOCK_TOKENS, ConnectedEngine, assert_same_kv
from support.passages import Prompt, passage
from support.reuse import crowd_out, learn, loaded

from nebula_protocol.events import HostBlocksStored
from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, legolink

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

A, B, C = passage(1, 60), passage(2, 75), passage(3, 90)
SYSTEM, QUESTION = passage(4, 21), passage(5, 26)
SHUFFLED = Prompt.of(SYSTEM, C, A, B, QUESTION, gaps=(0, 4))


def test_an_exact_request_is_the_same_before_and_after_reuse(engine: ConnectedEngine) -> None:
    before = engine.run_for_kv(SHUFFLED.tokens, salt="exact/")
    engine.reset()
    learn(engine, A, B, C)
    approximate = engine.run_for_kv(SHUFFLED.tokens, SHUFFLED.spans, fusion=NO_FUSION)
    assert loaded(approximate) == [len(C), len(A), len(B)]
    after = engine.run_for_kv(SHUFFLED.tokens, salt="exact/")
    assert (after.told.device_prefix_tokens, after.told.host_prefix_tokens) == (0, 0)
    assert_same_kv(after.kv, before.kv)
    assert after.answer == before.answer
    again = engine.run(SHUFFLED.tokens, salt="exact/")
    assert again.told.device_prefix_tokens == len(SHUFFLED.tokens) // BLOCK_TOKENS * BLOCK_TOKENS


def test_the_next_turn_of_a_conversation_with_reuse_hits_its_own_prefix(engine: ConnectedEngine) -> None:
    learn(engine, A, B, C)
    first = engine.run(SHUFFLED.tokens, SHUFFLED.spans, fusion=legolink(8), num_answer_tokens=8)
    assert loaded(first) == [len(C), len(A), len(B)]
    turn = Prompt([*SHUFFLED.tokens, *first.answer.token_ids, *passage(20, 30)], SHUFFLED.spans)
    second = engine.run(turn.tokens, turn.spans, fusion=legolink(8))
    # Of the last answer token there is no KV.
    known = len(SHUFFLED.tokens) + 8 - 1
    assert second.told.device_prefix_tokens == known // BLOCK_TOKENS * BLOCK_TOKENS
    assert loaded(second) == [0, 0, 0]
    assert [fact.prefix_tokens for fact in second.told.segments] == [len(C), len(A), len(B)]


def test_evicted_prefix_blocks_come_back_bit_for_bit(engine: ConnectedEngine) -> None:
    tokens = passage(70, 12 * BLOCK_TOKENS + 5)
    first = engine.run_for_kv(tokens, salt="exact/")
    crowd_out(engine)
    second = engine.run_for_kv(tokens, salt="exact/")
    assert second.told.host_prefix_tokens > 0
    assert second.told.device_prefix_tokens + second.told.host_prefix_tokens == 12 * BLOCK_TOKENS
    assert_same_kv(second.kv, first.kv)
    assert second.answer == first.answer
    assert any(isinstance(event, HostBlocksStored) for news in engine.news for event in news.events)


def test_segments_behind_a_prefix_that_comes_back(engine: ConnectedEngine) -> None:
    learn(engine, A, B)
    prefix = passage(72, 5 * BLOCK_TOKENS)
    engine.run([*prefix, 9], salt="reuse")
    crowd_out(engine)
    prompt = Prompt.of(prefix, passage(73, 7), B, A, QUESTION, gaps=(0, 1, 4))
    ran = engine.run_for_kv(prompt.tokens, prompt.spans, salt="reuse", fusion=FULL_FUSION)
    assert ran.told.host_prefix_tokens > 0
    assert loaded(ran) == [len(B), len(A)]
    reference = engine.run_for_kv(prompt.tokens, salt="reference")
    assert_same_kv(ran.kv, reference.kv)
