"""Prefill time over all shipped tables."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebula_protocol.cost import attention_pairs
from pic_worker.calibration.tables import load_table, table_names
from pic_worker.core.prefill_table import PrefillTable
from pic_worker.core.step_cost import StepCost

TABLES = [load_table(*name.split("/")) for name in table_names()]
tables = st.sampled_from(TABLES)
token_counts = st.integers(1, 100_000)


@given(table=tables, tokens=token_counts, more=st.integers(0, 5000), context=st.integers(0, 100_000))
def test_more_new_tokens_never_take_less_time(tokens: int, more: int, context: int, table: PrefillTable) -> None:
    assert table.step_s(tokens + more, context) >= table.step_s(tokens, context) * (1 - 1e-12)


@given(table=tables, tokens=token_counts, context=st.integers(-50_000, 100_000), more=st.integers(0, 5000))
def test_more_context_never_takes_less_time(tokens: int, more: int, context: int, table: PrefillTable) -> None:
    assert table.step_s(tokens, context + more) >= table.step_s(tokens, context) * (1 - 1e-12)


@given(table=tables, lengths=st.lists(st.integers(1, 4000), min_size=1, max_size=6))
@settings(max_examples=200)
def test_a_step_of_several_prompts_takes_time_and_no_more_than_one_prompt_of_all_their_tokens(
    lengths: list[int], table: PrefillTable
) -> None:
    cost = StepCost(table)
    total = sum(lengths)
    together_s = cost.step_s(total, sum(attention_pairs(length, 0) for length in lengths))
    # The pairs of several prompts are fewer than those of one that is as long as all of them.
    assert 0 < together_s <= cost.step_s(total, attention_pairs(total, 0)) * (1 + 1e-12)


@pytest.mark.parametrize("table", TABLES, ids=table_names())
def test_cells_are_met_exactly_and_cuts_are_smooth(table: PrefillTable) -> None:
    for row, new_tokens in enumerate(table.new_tokens):
        for column, context_tokens in enumerate(table.context_tokens):
            cell_s = table.rows_s[row][column]
            assert table.step_s(new_tokens, context_tokens) == pytest.approx(cell_s)
            assert table.step_s(new_tokens * 1.0001, context_tokens) == pytest.approx(cell_s, rel=1e-3)


def test_the_closed_form_is_near_the_table_where_it_counts() -> None:
    table = load_table("Qwen3-14B", "bf16", "h100_sxm")
    fit = table.cost_fit()
    for new_tokens in (512, 1024, 2048, 4096, 8192):
        for context_tokens in (0, 2048, 8192):
            closed_s = fit.step_s + fit.marginal_s(new_tokens, context_tokens)
            assert closed_s == pytest.approx(table.step_s(new_tokens, context_tokens), rel=0.21)
