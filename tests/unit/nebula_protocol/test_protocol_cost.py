import pytest

from nebula_protocol.cost import CostFit, LinkFit, attention_pairs


def test_new_tokens_attend_to_their_context_and_half_of_each_other() -> None:
    # 10 tokens behind 100: 10 * 100 pairs with the context and 10 * 10 / 2 among themselves.
    assert attention_pairs(10, 100) == 1050


def test_work_added_to_a_step_costs_no_second_step() -> None:
    fit = CostFit(step_s=1.0, per_token_s=0.01, per_pair_s=0.001)
    # 10 tokens at 0.01 s and 1050 pairs at 0.001 s.
    assert fit.marginal_s(10, 100) == pytest.approx(0.1 + 1.05)
    assert fit.marginal_s(0, 100) == 0


def test_work_in_two_parts_costs_what_it_costs_in_one() -> None:
    fit = CostFit(step_s=1.0, per_token_s=0.01, per_pair_s=0.001)
    assert fit.marginal_s(300, 50) + fit.marginal_s(700, 350) == pytest.approx(fit.marginal_s(1000, 50))


def test_a_transfer_takes_its_floor_and_its_bytes() -> None:
    # 3 ms and 22 MB at 22 GB/s, which is 1 ms.
    assert LinkFit(floor_s=0.003, bytes_per_s=22e9).transfer_s(22e6) == pytest.approx(0.004)
