"""Settings apart from the main table: what each changes, and the rows it gives."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.small_traces import retrieval_trace

from nebula_bench.cluster.cell import CellResult, run_cell
from nebula_bench.cluster.settings import ClusterSettings
from nebula_bench.paper.apart import PAPER_MODELS, PAPER_SYSTEM, POLICIES, SETTINGS, Setting, TableApart, run_sessions
from nebula_bench.paper.grid import BOUND, MODELS, OURS, CellJob, GridCell, Scope
from nebula_bench.paper.jobs import Jobs
from nebula_bench.paper.main_table import MainTable, TableCell, Timing
from nebula_bench.paper.markdown import cells_markdown
from nebula_bench.paper.part import Part
from nebula_bench.paper.rows import apart_rows, rate_rows
from nebula_protocol.fusion import cacheblend
from pic_worker.adapters.sim.costs import make_costs

SCOPE = Scope(data=Path("data"))
ALL = [setting for settings in SETTINGS.values() for setting in settings]


def ignore(_: object) -> None:
    """Nobody watches."""


def table_cell(workload: str, ours_ms: float, *, load: float = 0.8, rate_per_s: float = 40.0) -> TableCell:
    timings = {policy: Timing(100.0, 300.0, 0.5, 0.8) for policy in POLICIES}
    timings[OURS] = Timing(ours_ms, 150.0, 0.7, 0.6)
    timings[BOUND] = Timing(40.0, 120.0, 0.8, 0.5)
    return TableCell(GridCell(workload, "Qwen3-14B"), load, rate_per_s, timings)


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_each_setting_changes_the_workers_or_the_model_and_nothing_else(setting: Setting) -> None:
    changed, worker = setting.scope(SCOPE), SCOPE.cluster.worker
    before, after = worker.model_dump(), changed.cluster.worker.model_dump()
    differing = {key for key in before if before[key] != after[key]}
    assert differing == set(setting.worker)
    assert differing or changed.models != MODELS
    assert changed.cluster.model_copy(update={"worker": worker}) == SCOPE.cluster
    assert changed.seeds == SCOPE.seeds[:1]


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_each_setting_is_one_that_a_deployment_could_have(setting: Setting) -> None:
    cluster = setting.scope(SCOPE).cluster
    assert ClusterSettings.model_validate_json(cluster.model_dump_json()) == cluster


def test_cacheblend_recomputes_fifteen_percent_on_all_models() -> None:
    (setting,) = SETTINGS[Part.CACHEBLEND]
    changed = setting.scope(SCOPE)
    assert changed.cluster.worker.fusion == cacheblend(0.15)
    assert changed.models == MODELS


def test_rows_begin_with_the_settings_name_and_have_no_bars() -> None:
    table = MainTable((table_cell("ragpulse", 60.0), table_cell("chatdev", 80.0)))
    rows = {row.id: row for row in apart_rows(TableApart("link45", "faster links", table), (0.8,))}
    assert rows["link45_ttft_reduction_load80"].value == pytest.approx(0.3)
    # The bound would reduce by 0.6.
    assert rows["link45_oracle_gap_captured_load80"].value == pytest.approx(0.5)
    assert rows["link45_worst_cell"].value == pytest.approx(0.2)
    assert all(row.bar is None for row in rows.values())


def test_the_paper_rates_are_reported_one_by_one_and_together() -> None:
    cells = (table_cell("ragpulse", 60.0), table_cell("ragpulse", 20.0), table_cell("ragpulse", 50.0, rate_per_s=48.0))
    rows = {row.id: row.value for row in rate_rows(TableApart("paper_rates", "rates", MainTable(cells)))}
    # Two models at 40/s: (0.4 + 0.8) / 2.
    assert rows["paper_rates_ttft_reduction_ragpulse40"] == pytest.approx(0.6)
    assert rows["paper_rates_ttft_reduction_ragpulse48"] == pytest.approx(0.5)
    assert rows["paper_rates_ttft_reduction"] == pytest.approx((0.4 + 0.8 + 0.5) / 3)


def test_a_table_without_the_farther_bound_has_no_column_for_it() -> None:
    assert "omniscient" not in cells_markdown(MainTable((table_cell("ragpulse", 60.0),)))


@pytest.mark.parametrize("model", PAPER_MODELS)
def test_there_is_a_table_of_the_slower_gpu_for_each_model(model: str) -> None:
    cell = GridCell("ragpulse", model)
    slower = SCOPE.model_copy(update={"system": PAPER_SYSTEM})
    slow, fast = (make_costs(scope.job(cell, OURS, 40.0, 1).cell.cluster.worker).fit for scope in (slower, SCOPE))
    assert slow.per_token_s > 1.5 * fast.per_token_s


def test_sessions_wait_in_every_run_and_at_the_rates_given() -> None:
    asked: list[CellJob] = []

    class Answered(Jobs[CellJob, CellResult]):
        def run(self, jobs: Sequence[CellJob], on_finished: Callable[[CellJob], None] = ignore) -> list[CellResult]:
            asked.extend(jobs)
            return super().run(jobs, on_finished)

    def compute(job: CellJob) -> CellResult:
        return run_cell(job.cell, retrieval_trace(10))

    jobs = Answered(compute, CellResult, num_processes=1, commit="", memory=None)
    cell = GridCell("tau_retail", "Qwen3-14B")
    scope = Scope(data=Path("data"), seeds=(1,))
    apart = run_sessions(scope, {(cell, 0.8): 20.0}, jobs, ignore)
    assert [job.cell.policy for job in asked] == list(POLICIES)
    assert all(job.cell.load.closed_loop and job.cell.load.rate_per_s == 20.0 for job in asked)
    assert set(apart.table.cells[0].timings) == set(POLICIES)
