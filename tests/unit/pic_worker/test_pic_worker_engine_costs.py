"""What a vLLM worker tells of its own speed, and its facts without the connector."""

from dataclasses import dataclass
from typing import Any, cast

import pytest
from support.engine_world import passage, unplanned

from nebula_protocol.cost import CostFit, attention_pairs
from pic_worker.adapters.vllm.plain_facts import plain_facts
from pic_worker.core.cost_fit import fit_step_cost


def times_of(cost: CostFit, *sizes: int) -> list[float]:
    return [cost.step_s + cost.marginal_s(size, 0) for size in sizes]


def test_a_fit_through_three_exact_times_is_the_cost_itself() -> None:
    cost = CostFit(step_s=0.02, per_token_s=1e-3, per_pair_s=1e-7)
    fitted = fit_step_cost((16, 128, 512), times_of(cost, 16, 128, 512))
    assert fitted.step_s == pytest.approx(0.02)
    assert fitted.per_token_s == pytest.approx(1e-3)
    assert fitted.per_pair_s == pytest.approx(1e-7)


def test_noise_never_makes_a_term_negative() -> None:
    # Slower per token at small sizes: the exact fit would bend downwards, with negative pairs.
    fitted = fit_step_cost((16, 128, 512), (0.04, 0.2, 0.5))
    assert fitted.per_pair_s == 0
    assert fitted.per_token_s > 0
    assert fitted.step_s >= 0


def test_times_that_fall_with_size_still_give_a_usable_cost() -> None:
    fitted = fit_step_cost((16, 128, 512), (0.3, 0.2, 0.1))
    assert fitted.step_s > 0
    assert fitted.per_token_s > 0
    assert fitted.per_pair_s == 0


def test_equal_sizes_are_no_trouble() -> None:
    fitted = fit_step_cost((16, 16, 16), (0.1, 0.1, 0.1))
    assert sum(times_of(fitted, 16)) == pytest.approx(0.1)


@dataclass
class Times:
    queued_ts: float
    scheduled_ts: float
    first_token_ts: float


@dataclass
class Output:
    prompt_token_ids: list[int]
    num_cached_tokens: int
    metrics: Times | None


def test_facts_without_the_connector_are_vllms_own_account() -> None:
    tokens = passage(1, 100)
    request = unplanned("r", tokens, [(10, 40), (40, 90)])
    output = Output(tokens.tolist(), 64, Times(1.0, 1.5, 2.25))
    facts = plain_facts(request, cast("Any", output), max_step_tokens=16)
    assert (facts.device_prefix_tokens, facts.host_prefix_tokens, facts.computed_tokens) == (64, 0, 36)
    assert facts.attention_pairs == attention_pairs(36, 64)
    # 36 tokens in steps of 16.
    assert facts.num_steps == 3
    assert (facts.queued_s, facts.step_s) == (0.5, 0.75)
    # The prefix covers the first segment and [40, 64) of the second.
    assert [segment.prefix_tokens for segment in facts.segments] == [30, 24]
    assert [segment.loaded_tokens for segment in facts.segments] == [0, 0]
