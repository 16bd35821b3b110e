"""What the engine computes again of reused segments, by method."""

from dataclasses import replace

import pytest
from support.engine_world import NUM_LAYERS, RECOMPUTE, TOKEN_S, EngineWorld, join, passage, planned, span, unplanned

from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, Fusion, cacheblend, legolink
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason, Receipt

LEAD, OTHER_LEAD, PASSAGE, QUESTION = passage(0, 8), passage(9, 8), passage(1, 40), passage(2, 5)


def serve_again(world: EngineWorld, fusion: Fusion | None = None) -> Receipt:
    """The passage's second use: 8 tokens before it, its 40, 5 behind it."""
    world.serve(unplanned("first", join(LEAD, PASSAGE, QUESTION), [(8, 48)]))
    request = unplanned("again", join(OTHER_LEAD, PASSAGE, QUESTION), [(8, 48)])
    return world.serve(replace(request, fusion=fusion))


def test_without_a_wish_the_worker_fuses_as_it_is_set() -> None:
    receipt = serve_again(EngineWorld())
    assert (receipt.segment_hit_tokens, receipt.recomputed_tokens, receipt.computed_tokens) == (40, RECOMPUTE, 13)


def test_cacheblend_computes_its_share_again_and_pays_for_the_choice() -> None:
    receipt = serve_again(EngineWorld(fusion=cacheblend(0.15)))
    # 0.15 * 40
    assert (receipt.segment_hit_tokens, receipt.recomputed_tokens, receipt.computed_tokens) == (40, 6, 13)
    # 13 tokens around the passage, 6 of it again, and 40 through 2 of 20 layers, as long as 4 tokens.
    assert NUM_LAYERS == 20
    assert receipt.work.computed_tokens == receipt.work.step_tokens == 13 + 6 + 4
    # A token is computed in 1 ms and loaded in 1 ms; all 40 are loaded, to be compared.
    assert receipt.timing.compute_s == pytest.approx((13 + 6 + 4 + 40) * TOKEN_S)


def test_cacheblend_attends_to_as_much_as_tokens_spread_over_the_segment_would() -> None:
    receipt = serve_again(EngineWorld(fusion=cacheblend(0.15)))
    # Around the passage: 8 * 4 and 5 * (48 + 2.5). The 6 lie in its middle, at 25 to 31: 6 * 28. The probe: a tenth of
    # 40 * (8 + 20).
    assert receipt.work.attention_pairs == pytest.approx(32 + 252.5 + 168 + 112)


def test_a_request_may_ask_for_another_fusion_than_the_worker_has() -> None:
    assert serve_again(EngineWorld(), cacheblend(0.5)).recomputed_tokens == 20
    assert serve_again(EngineWorld(fusion=cacheblend(0.5)), legolink(3)).recomputed_tokens == 3


def test_without_fusion_all_of_a_segment_is_loaded() -> None:
    receipt = serve_again(EngineWorld(), NO_FUSION)
    assert (receipt.segment_hit_tokens, receipt.recomputed_tokens, receipt.work.computed_tokens) == (40, 0, 13)


def test_where_all_is_computed_again_nothing_is_reused() -> None:
    receipt = serve_again(EngineWorld(), FULL_FUSION)
    assert (receipt.segment_hit_tokens, receipt.recomputed_tokens, receipt.computed_tokens) == (0, 0, 53)


def test_a_planned_segment_that_a_request_wants_computed_again_in_full_is_vetoed() -> None:
    world = EngineWorld()
    world.serve(unplanned("first", join(LEAD, PASSAGE, QUESTION), [(8, 48)]))
    tokens = join(OTHER_LEAD, PASSAGE, QUESTION)
    receipt = world.serve(replace(planned("b", tokens, [span(tokens, 8, 48, Source.LOCAL)]), fusion=FULL_FUSION))
    assert receipt.segments[0].fallback is FallbackReason.VETO
    assert receipt.invalid_hit_tokens == 0


def test_the_probe_takes_nothing_from_the_budget_of_a_step() -> None:
    world = EngineWorld(fusion=cacheblend(0.15), max_step_tokens=19)
    # 13 + 6 tokens fill one step; the probe goes beside it.
    world.serve(unplanned("first", join(LEAD, PASSAGE, QUESTION), [(8, 48)]))
    receipt = world.serve(unplanned("again", join(OTHER_LEAD, PASSAGE, QUESTION), [(8, 48)]))
    assert (receipt.work.num_steps, receipt.work.step_tokens) == (1, 23)


def test_a_segment_of_which_cacheblend_spared_nothing_is_computed() -> None:
    world = EngineWorld(fusion=cacheblend(0.99))
    # 0.99 * 40, rounded up, is all of it.
    assert serve_again(world).segment_hit_tokens == 0
