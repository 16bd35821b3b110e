"""The main table's figures and their rows."""

import pytest

from nebula_bench.paper.accounting import ErrorReduction
from nebula_bench.paper.dynamo_agreement import Agreement
from nebula_bench.paper.grid import BOUND, FARTHER_BOUND, OURS, GridCell
from nebula_bench.paper.main_table import MainTable, TableCell, Timing
from nebula_bench.paper.markdown import cells_markdown, rows_markdown
from nebula_bench.paper.recovery import WorkloadRecovery
from nebula_bench.paper.rows import accounting_rows, agreement_rows, main_rows, recovery_rows, sweep_rows
from nebula_bench.policies.catalogue import BASELINES
from nebula_bench.results import Measurement

STRONGEST = "dynamo_kv_pic"


def table_cell(ours_ms: float, *, load: float = 0.8, bound_ms: float = 40.0, base_ms: float = 100.0) -> TableCell:
    timings = {policy: Timing(2 * base_ms, 4 * base_ms, 0.3, 0.8) for policy in BASELINES}
    timings[STRONGEST] = Timing(base_ms, 300.0, 0.5, 0.8)
    timings[OURS] = Timing(ours_ms, 150.0, 0.7, 0.6)
    timings[BOUND] = timings[FARTHER_BOUND] = Timing(bound_ms, 120.0, 0.8, 0.5)
    return TableCell(GridCell("ragpulse", "Qwen3-14B"), load, 60.0, timings)


def values(rows: list[Measurement]) -> dict[str, float]:
    return {row.id: row.value for row in rows}


def test_the_baseline_with_the_lowest_median_is_the_strongest() -> None:
    cell = table_cell(ours_ms=55.0)
    assert cell.strongest == STRONGEST
    assert cell.reduction == pytest.approx(0.45)
    # Of 300 ms, the p95 of the baseline that is strongest by its median.
    assert cell.p95_reduction == pytest.approx(0.5)
    # 45 of the 60 ms between the baseline and the bound.
    assert cell.captured() == pytest.approx(0.75)


def test_reductions_are_means_over_cells_and_the_worst_is_named() -> None:
    table = MainTable((table_cell(40.0), table_cell(90.0)))
    assert table.mean_reduction(0.8) == pytest.approx((0.6 + 0.1) / 2)
    # The bound would reduce by 0.6 in both.
    assert table.gap_captured(0.8) == pytest.approx(0.35 / 0.6)
    assert table.worst().reduction == pytest.approx(0.1)


def test_a_bar_is_met_or_missed_by_the_mean() -> None:
    rows = list(main_rows(MainTable((table_cell(50.0), table_cell(30.0, load=0.95))), (0.80, 0.95)))
    by_id = {row.id: row for row in rows}
    assert by_id["ttft_reduction_load80"].value == pytest.approx(0.5)
    assert by_id["ttft_reduction_load80"].ok
    # (100 - 50) of (100 - 40) ms is 0.83 of the way: at least 0.68.
    assert by_id["oracle_gap_captured_load80"].ok
    assert by_id["ttft_reduction_load95"].ok
    assert by_id["worst_cell"].value == pytest.approx(0.5)


def test_a_cell_that_became_slower_misses_the_bar_of_the_worst() -> None:
    rows = {row.id: row for row in main_rows(MainTable((table_cell(101.0),)), (0.80,))}
    assert not rows["worst_cell"].ok


def test_the_load_at_which_the_paper_is_passed_is_the_first() -> None:
    rows = values(list(sweep_rows({0.2: 0.1, 0.8: 0.5, 1.1: 0.7, 1.2: 0.8})))
    assert rows["load_at_paper_reduction"] == 1.1
    assert rows["ttft_reduction_sweep80"] == 0.5


def test_the_paper_is_passed_nowhere() -> None:
    assert values(list(sweep_rows({0.2: 0.1})))["load_at_paper_reduction"] == 0.0


def test_our_gap_to_the_ideal_may_be_half_of_the_references() -> None:
    recovery = WorkloadRecovery(
        "ragpulse", recovered_share=0.96, ideal_hit_ratio=0.72, our_hit_ratio=0.62, reference_hit_ratio=0.50
    )
    rows = {row.id: row for row in recovery_rows([recovery])}
    # 72 - 62 = 10 points against half of 72 - 50 = 22 points.
    assert rows["ideal_gap_ragpulse"].value == pytest.approx(10)
    assert rows["ideal_gap_ragpulse"].ok
    assert rows["recovered_share_ragpulse"].ok


def test_an_error_that_is_almost_gone_is_a_reduction_of_almost_one() -> None:
    invalid = ErrorReduction("ragpulse", "store of 50,000 tokens", other_ratio=0.05, our_ratio=0.0002)
    repeated = ErrorReduction("ragpulse", "event delay 20 ms", other_ratio=0.02, our_ratio=0.001)
    rows = {row.id: row for row in accounting_rows([invalid], [repeated])}
    # 1 - 0.0002 / 0.05 and 1 - 0.001 / 0.02.
    assert rows["invalid_hit_reduction_ragpulse"].value == pytest.approx(0.996)
    assert rows["invalid_hit_reduction_ragpulse"].ok
    assert rows["repeated_reduction_ragpulse"].value == pytest.approx(0.95)
    assert not rows["repeated_reduction_ragpulse"].ok


def test_agreement_is_that_of_the_worst_workload() -> None:
    near = Agreement(our_hit_ratio=0.31, dynamo_hit_ratio=0.31, our_ttft_p50_ms=100.0, dynamo_ttft_p50_ms=100.0)
    far = Agreement(our_hit_ratio=0.31, dynamo_hit_ratio=0.34, our_ttft_p50_ms=105.0, dynamo_ttft_p50_ms=100.0)
    rows = {row.id: row for row in agreement_rows({"a": near, "b": far})}
    assert rows["dynamo_agreement_hit"].value == pytest.approx(3.0)
    assert not rows["dynamo_agreement_hit"].ok
    assert rows["dynamo_agreement_ttft"].value == pytest.approx(0.05)
    assert rows["dynamo_agreement_ttft"].ok


def test_the_report_names_what_was_missed_and_marks_the_strongest() -> None:
    table = MainTable((table_cell(101.0),))
    rows = rows_markdown(main_rows(table, (0.80,)))
    assert "| worst_cell |  | >= 0 | -0.01  | missed |" in rows
    assert "| ttft_reduction_load80 | 61.4 % | >= 0.42 | -0.01  | missed |" in rows
    assert "**100.0**" in cells_markdown(table)
