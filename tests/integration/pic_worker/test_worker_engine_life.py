"""Requests side by side, broken off, preempted and repeated, over the real engine."""

import random

import pytest
from support.connected_engine import (
    BLOCK_TOKENS,
    NUM_DEVICE_BLOCKS,
    STORE_TOKENS,
    ConnectedEngine,
    assert_same_kv,
)
from support.passages import Prompt, passage
from support.reuse import crowd_out, learn, loaded

from nebula_protocol.events import SegmentRemoved, SegmentStored, StoreCleared
from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, Fusion, cacheblend, legolink
from nebula_protocol.ids import Origin
from pic_worker.adapters.vllm.engine_wire import ClearControl, PrefillKind

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    # What the ranks do with orders is tested with two of them elsewhere; here it is what is ordered when.
    pytest.mark.parametrize("started_engine", [1], indirect=True, ids=["one_rank"]),
]

A, B, C = passage(1, 60), passage(2, 75), passage(3, 90)
SYSTEM, QUESTION = passage(4, 21), passage(5, 26)
SHUFFLED = Prompt.of(SYSTEM, C, A, B, QUESTION, gaps=(0, 4))


# ---- several requests at once ----


@pytest.mark.parametrize("fusion", [FULL_FUSION, NO_FUSION, cacheblend(0.2)], ids=str)
def test_requests_that_share_segments_at_the_same_time(engine: ConnectedEngine, fusion: Fusion) -> None:
    learn(engine, A, B, C)
    prompts = [
        Prompt.of(passage(30, 17), A, B, QUESTION, gaps=(0, 3)),
        Prompt.of(passage(31, 9), B, C, A, QUESTION, gaps=(0, 4)),
        Prompt.of(passage(32, 40), A, A, QUESTION, gaps=(0, 3)),
    ]
    alone = [engine.run(each.tokens, each.spans, salt="alone", fusion=fusion) for each in prompts]
    names = [engine.add(each.tokens, each.spans, salt="together", fusion=fusion) for each in prompts]
    engine.finish()
    for name, ran in zip(names, alone, strict=True):
        facts = engine.facts(name)
        assert [fact.loaded_tokens for fact in facts.segments] == loaded(ran)
        assert sum(loaded(ran)) > 0
        assert engine.answers[name] == ran.answer


def test_what_two_requests_compute_at_the_same_time_is_stored_once(engine: ConnectedEngine) -> None:
    prompt = Prompt.of(SYSTEM, A, QUESTION, gaps=(0, 2))
    names = [engine.add(prompt.tokens, prompt.spans, salt=salt) for salt in ("one", "other")]
    engine.finish()
    for name in names:
        (fact,) = engine.facts(name).segments
        assert (fact.was_absent, fact.loaded_tokens, fact.is_stored) == (True, 0, True)
    assert len(events_of(engine, SegmentStored)) == 1


def test_a_segment_computed_alone_gives_way_to_one_in_context(engine: ConnectedEngine) -> None:
    alone = engine.run(A, [(0, len(A))], salt="alone/", kind=PrefillKind.ALONE)
    assert alone.told.segments[0].is_stored
    reused = engine.run_for_kv(SHUFFLED.tokens, SHUFFLED.spans, salt="reuse", fusion=FULL_FUSION)
    assert [fact.origin for fact in reused.told.segments] == [None, Origin.ALONE, None]
    reference = engine.run_for_kv(SHUFFLED.tokens, salt="reference")
    assert_same_kv(reused.kv, reference.kv)
    prompt = Prompt.of(QUESTION, A, SYSTEM, gaps=(0, 2))
    engine.run(prompt.tokens, prompt.spans, salt="new", may_reuse=False)
    again = engine.run(SHUFFLED.tokens, SHUFFLED.spans, salt="again", fusion=FULL_FUSION)
    assert again.told.segments[1].origin is Origin.IN_CONTEXT


# ---- broken off ----


@pytest.mark.parametrize("num_steps", [0, 1, 2, 3, 4])
def test_a_request_aborted_at_any_moment_leaves_nothing_behind(engine: ConnectedEngine, num_steps: int) -> None:
    """Its load takes three steps: 246 tokens at 96 a step."""
    learn(engine, A, B, C)
    name = engine.add(SHUFFLED.tokens, SHUFFLED.spans, salt="reuse", num_answer_tokens=20)
    for _ in range(num_steps):
        engine.step()
    engine.abort(name)
    engine.finish()
    facts = engine.facts(name)
    assert not facts.is_whole or num_steps == 4
    assert sum(fact.loaded_tokens for fact in facts.segments) == (225 if num_steps else 0)
    engine.assert_nothing_in_use()
    ran = engine.run(SHUFFLED.tokens, SHUFFLED.spans, salt="other", fusion=FULL_FUSION)
    reference = engine.run(SHUFFLED.tokens, salt="reference")
    assert ran.answer == reference.answer


def test_a_preempted_request_is_loaded_anew(engine: ConnectedEngine) -> None:
    passages = [passage(40 + number, 200) for number in range(3)]
    learn(engine, *passages)
    prompts = [Prompt.of(passage(50 + number, 30), *passages, passage(60, 40), gaps=(0, 4)) for number in range(2)]
    # Two of 670 tokens and their answers do not fit into 47 blocks of 32.
    num_answer_tokens = 100
    assert 2 * (670 + num_answer_tokens) > (NUM_DEVICE_BLOCKS - 1) * BLOCK_TOKENS
    names = [engine.add(each.tokens, each.spans, salt="reuse", num_answer_tokens=num_answer_tokens) for each in prompts]
    num_preemptions = 0
    while engine.core.scheduler.has_requests():
        engine.step()
        requests = list(engine.core.scheduler.requests.values())
        num_preemptions = max([num_preemptions, *(request.num_preemptions for request in requests)])
    assert num_preemptions > 0
    for name, prompt in zip(names, prompts, strict=True):
        facts = engine.facts(name)
        assert facts.is_whole
        assert [fact.loaded_tokens for fact in facts.segments] == [200, 200, 200]
        reference = engine.run(prompt.tokens, salt="reference")
        assert engine.answers[name].logprobs[0] == reference.answer.logprobs[0]
        assert len(engine.answers[name].token_ids) == num_answer_tokens


# ---- the tier below ----


def test_blocks_of_requests_without_an_order_come_back_too(engine: ConnectedEngine) -> None:
    tokens = passage(71, 6 * BLOCK_TOKENS + 5)
    first = engine.run(tokens, has_order=False)
    crowd_out(engine)
    second = engine.run(tokens)
    assert second.told.host_prefix_tokens > 0
    assert second.answer == first.answer
    assert all(facts.request_id != first.name for news in engine.news for facts in news.finished)


def test_a_cleared_store_holds_nothing(engine: ConnectedEngine) -> None:
    learn(engine, A, B, C)
    # The news of the clearing before this test came before that of what was learned.
    engine.news.clear()
    engine.control(ClearControl())
    while not events_of(engine, StoreCleared):
        engine.run(passage(80, 5))
    ran = engine.run(SHUFFLED.tokens, SHUFFLED.spans)
    assert [fact.was_absent for fact in ran.told.segments] == [True, True, True]


def test_more_distinct_segments_than_fit_leak_nothing(engine: ConnectedEngine) -> None:
    """Forty segments of 200 tokens, half of them twice, into room for twenty."""
    chance = random.Random(0)
    pool = [passage(200 + number, 200) for number in range(40)]
    assert 1.5 * STORE_TOKENS < 40 * 200
    names: list[str] = []
    for number in range(30):
        parts = [passage(300 + number, 11), *chance.sample(pool, 3)]
        prompt = Prompt.of(*parts, gaps=(0,))
        names.append(engine.add(prompt.tokens, prompt.spans, fusion=legolink(4), num_answer_tokens=1 + number % 3))
        if number % 5 == 4:
            engine.abort(chance.choice(names))
        for _ in range(number % 4):
            engine.step()
    engine.finish()
    engine.assert_nothing_in_use()
    assert events_of(engine, SegmentRemoved)
    assert sum(fact.loaded_tokens for name in names for fact in engine.facts(name).segments) > 0


# ---- what the tests look at ----


def events_of(engine: ConnectedEngine, kind: type) -> list[object]:
    return [event for news in engine.news for event in news.events if isinstance(event, kind)]
