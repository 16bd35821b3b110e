"""CacheBlend through the whole connector: ranks that each see their own heads choose the same tokens."""

import random

import pytest
from support.connected_engine import ConnectedEngine, Kv, Ran, assert_same_kv

from nebula_protocol.fusion import NO_FUSION, Fusion, cacheblend

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def text(seed: int, num_tokens: int) -> list[int]:
    return random.Random(seed).choices(range(10, 500), k=num_tokens)


FIRST, SECOND = text(1, 80), text(2, 70)
DONOR = [*text(3, 33), *FIRST, *SECOND, *text(4, 5)]
PROMPT = [*text(5, 20), *SECOND, *FIRST, *text(6, 30)]
SPANS = [(20, 90), (90, 170)]


@pytest.fixture
def known(engine: ConnectedEngine) -> ConnectedEngine:
    """An engine whose store has both segments."""
    ran = engine.run(DONOR, [(33, 113), (113, 183)], salt="donor")
    assert all(fact.is_stored for fact in ran.told.segments)
    return engine


def run(engine: ConnectedEngine, fusion: Fusion) -> Ran:
    ran = engine.run_for_kv(PROMPT, SPANS, salt=str(fusion), fusion=fusion)
    assert [fact.loaded_tokens for fact in ran.told.segments] == [70, 80]
    return ran


def changed(kv: Kv | None, from_kv: Kv | None) -> list[list[int]]:
    """Per rank, the positions in segments whose values in the last layer differ."""
    assert kv is not None
    assert from_kv is not None
    found = []
    for layers, from_layers in zip(kv, from_kv, strict=True):
        differs = (layers[-1][1] != from_layers[-1][1]).flatten(1).any(1)
        found.append([position for position in differs.nonzero().flatten().tolist() if 20 <= position < 170])
    return found


def test_ranks_choose_the_same_tokens_and_as_many_as_the_receipt_says(known: ConnectedEngine) -> None:
    injected, blended = run(known, NO_FUSION), run(known, cacheblend(0.3))
    chosen = changed(blended.kv, injected.kv)
    assert all(positions == chosen[0] for positions in chosen)
    # 0.3 of 70 + 80.
    assert len(chosen[0]) == sum(fact.recomputed_tokens for fact in blended.told.segments) == 45


def test_blending_all_tokens_is_full_prefill_bit_for_bit(known: ConnectedEngine) -> None:
    reference = known.run_for_kv(PROMPT, salt="reference")
    blended = run(known, cacheblend(1.0))
    assert_same_kv(blended.kv, reference.kv)
    assert blended.answer == reference.answer
