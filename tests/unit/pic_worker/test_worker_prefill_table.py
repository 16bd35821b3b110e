import pytest

from nebula_protocol.cost import CostFit
from pic_worker.calibration.tables import UnknownTableError, load_table, table_names
from pic_worker.core.prefill_table import PrefillTable, TableFit, make_table
from pic_worker.core.step_cost import LoadCost, StepCost


def small_table() -> PrefillTable:
    return make_table(
        model="m",
        dtype="d",
        system="s",
        kv_bytes_per_token=8,
        fit=TableFit(step_s=1.0, per_token_s=0.5, per_pair_s=0.25),
        new_tokens=(10, 100, 1000),
        context_tokens=(0, 100),
        rows_s=((1.0, 2.0), (10.0, 20.0), (100.0, 200.0)),
    )


@pytest.mark.parametrize(
    ("new_tokens", "context_tokens", "expected_s"),
    [
        (100, 0, 10.0),
        (100, 50, 15.0),  # halfway between the columns 10 and 20
        (31.6227766, 0, 3.16227766),  # time is proportional to tokens here, on the log axis too
        (5, 0, 1.0),  # shorter than the first row
        (5, 100, 2.0),
        (2000, 0, 200.0),  # 100 + (100 - 10) * (2000 - 1000) / (1000 - 100)
        (100, 200, 30.0),  # the last column's slope goes on: 20 + 10
        (100, -25, 7.5),  # and the first one's: 10 - 10 * 25 / 100
        (100, -80, 5.0),  # 100 tokens have no less pairs than none: their context is -50 at least
    ],
)
def test_time_between_and_beyond_the_cells(new_tokens: float, context_tokens: float, expected_s: float) -> None:
    assert small_table().step_s(new_tokens, context_tokens) == pytest.approx(expected_s)


def test_noise_never_makes_more_work_faster() -> None:
    table = make_table(
        model="m",
        dtype="d",
        system="s",
        kv_bytes_per_token=8,
        fit=TableFit(step_s=1.0, per_token_s=0.5, per_pair_s=0.25),
        new_tokens=(10, 100),
        context_tokens=(0, 100),
        rows_s=((5.0, 4.0), (3.0, 6.0)),
    )
    assert table.rows_s == ((5.0, 5.0), (5.0, 6.0))


def test_the_closed_form_takes_factor_and_overhead() -> None:
    fit = small_table().cost_fit(time_factor=2.0, step_overhead_s=0.5)
    assert fit == CostFit(step_s=2.5, per_token_s=1.0, per_pair_s=0.5)


def test_a_step_of_several_requests_adds_up_their_tokens_and_pairs() -> None:
    cost = StepCost(small_table(), time_factor=2.0, step_overhead_s=0.5)
    # Two requests of 50 tokens behind 75: 100 tokens, 2 * 50 * (75 + 25) = 10,000 pairs, which are those of
    # 100 tokens behind 10000 / 100 - 50 = 50: halfway between 10 and 20.
    assert cost.step_s(100, 2 * 50 * (75 + 25)) == pytest.approx(2.0 * 15.0 + 0.5)


def test_reloading_a_segment_costs_the_copy_and_the_rotation_of_its_keys() -> None:
    cost = LoadCost(kv_bytes_per_token=1000, host_load_bytes_per_s=1e6, rotation_bytes_per_s=1e5)
    assert cost.block_s_per_token == pytest.approx(0.001)
    assert cost.segment_s_per_token == pytest.approx(0.001 + 500 / 1e5)


def test_the_table_of_qwen3_14b_on_h100_has_its_measured_cells() -> None:
    table = load_table("Qwen3-14B", "bf16", "h100_sxm")
    assert table.kv_bytes_per_token == 163840
    # The fit named `abs` of the file: 4.7887 ms + 0.038907 ms a token + 1.2479e-06 ms a pair.
    fit = table.cost_fit()
    assert (fit.step_s, fit.per_token_s, fit.per_pair_s) == pytest.approx((0.0047887, 3.8907e-05, 1.2479e-09))
    # 40.029 ms and 91.622 ms in the file.
    assert table.step_s(1024, 0) == pytest.approx(0.040029)
    assert table.step_s(2048, 4096) == pytest.approx(0.091622)


def test_every_shipped_table_loads() -> None:
    names = table_names()
    assert len(names) == 26
    for name in names:
        assert load_table(*name.split("/")).step_s(512, 1024) > 0


def test_an_unknown_table_names_the_known_ones() -> None:
    with pytest.raises(UnknownTableError, match=r"no prefill-time table for m/d/s; known are: .*Qwen3-14B/bf16/h100"):
        load_table("m", "d", "s")
