"""The parts of the comparison with the paper: what is run for each, and what comes out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nebula_bench.cluster.cell import CellResult, read_workload
from nebula_bench.cluster.settings import LoadSettings
from nebula_bench.paper.accounting import MODEL as ACCOUNTING_MODEL
from nebula_bench.paper.accounting import ErrorReduction, invalid_hit_reductions, repeated_reductions
from nebula_bench.paper.apart import ONE_MODEL, SETTINGS, TableApart, run_paper_rates, run_sessions
from nebula_bench.paper.apart import POLICIES as APART_POLICIES
from nebula_bench.paper.compute import compute_cell, compute_rate
from nebula_bench.paper.dynamo_agreement import Agreement, compare_with_dynamo
from nebula_bench.paper.grid import LOADS, OURS, CellJob, GridCell, RateJob, Scope
from nebula_bench.paper.jobs import Jobs
from nebula_bench.paper.main_table import MainTable, find_rates, run_table
from nebula_bench.paper.part import Part
from nebula_bench.paper.recovery import MODEL as RECOVERY_MODEL
from nebula_bench.paper.recovery import WorkloadRecovery, measure_recovery
from nebula_bench.paper.rows import (
    accounting_rows,
    agreement_rows,
    apart_rows,
    main_rows,
    rate_rows,
    recovery_rows,
    split_rows,
    sweep_rows,
    window_rows,
)
from nebula_bench.paper.split import Division, WindowSpread, measure_divisions, measure_windows
from nebula_bench.policies.catalogue import BASELINES
from nebula_bench.results import Measurement

_SWEEP_LOADS = (0.2, 0.4, 0.6, 0.8, 0.95, 1.1, 1.2)
_DYNAMO_RATES_PER_S = {"ragpulse": 40.0, "quac_recon": 40.0, "chatdev": 12.0, "tau_retail": 40.0}


@dataclass(slots=True)
class Findings:
    """What a part has shown; what it does not look at is empty."""

    part: Part
    rows: list[Measurement] = field(default_factory=list)
    table: MainTable | None = None
    sweep: dict[float, float] = field(default_factory=dict)
    recoveries: list[WorkloadRecovery] = field(default_factory=list)
    invalid: list[ErrorReduction] = field(default_factory=list)
    repeated: list[ErrorReduction] = field(default_factory=list)
    divisions: list[Division] = field(default_factory=list)
    windows: list[WindowSpread] = field(default_factory=list)
    apart: list[TableApart] = field(default_factory=list)
    agreements: dict[str, Agreement] = field(default_factory=dict)


class Comparison:
    """Runs parts one after another; each uses all processes."""

    def __init__(
        self,
        scope: Scope,
        *,
        num_processes: int,
        commit: str,
        memory: Path | None,
        on_finished: Callable[[object], None] = lambda _: None,
    ) -> None:
        """
        Args:
            memory: folder of results of earlier, perhaps interrupted runs; None to compute everything.
            on_finished: called for each run or search that is done.

        Raises:
            ResultsError: the folder holds something else.
        """
        self._scope = scope
        self._on_finished = on_finished
        self._cells: Jobs[CellJob, CellResult] = Jobs(
            compute_cell,
            CellResult,
            num_processes=num_processes,
            commit=commit,
            memory=None if memory is None else memory / "cells.jsonl",
        )
        self._rates: Jobs[RateJob, float] = Jobs(
            compute_rate,
            float,
            num_processes=num_processes,
            commit=commit,
            memory=None if memory is None else memory / "rates.jsonl",
        )

    def run(self, part: Part) -> Findings:
        """
        Raises:
            BenchError: a run failed, or a trace or file is missing.
        """
        findings = Findings(part)
        match part:
            case Part.MAIN:
                findings.table = run_table(self._scope, self._find(LOADS), self._cells, self._on_finished)
                findings.rows += main_rows(findings.table, LOADS)
            case Part.SWEEP:
                findings.sweep = self._sweep()
                findings.rows += sweep_rows(findings.sweep)
            case Part.RECOVERY:
                rates = self._find(LOADS[:1], RECOVERY_MODEL)
                by_workload = {cell.workload: rate_per_s for (cell, _), rate_per_s in rates.items()}
                findings.recoveries = measure_recovery(self._scope, by_workload, self._cells, self._on_finished)
                findings.rows += recovery_rows(findings.recoveries)
            case Part.ACCOUNTING:
                scope = self._scope.model_copy(update={"models": (ACCOUNTING_MODEL,)})
                findings.invalid = invalid_hit_reductions(scope, self._cells, self._on_finished)
                findings.repeated = repeated_reductions(scope, self._cells, self._on_finished)
                findings.rows += accounting_rows(findings.invalid, findings.repeated)
            case Part.SPLIT:
                findings.divisions = measure_divisions(self._scope, self._cells, self._on_finished)
                findings.windows = measure_windows(self._scope, self._cells, self._on_finished)
                findings.rows += [*split_rows(findings.divisions), *window_rows(findings.windows)]
            case Part.CACHEBLEND | Part.LINKS | Part.CAPACITIES | Part.HYBRID:
                apart = self._run_apart(part)
                findings.apart += apart
                findings.rows += [row for one in apart for row in apart_rows(one, LOADS)]
            case Part.PAPER_RATES:
                at_rates = run_paper_rates(self._scope, self._cells, self._on_finished)
                if at_rates is not None:
                    findings.apart.append(at_rates)
                    findings.rows += rate_rows(at_rates)
            case Part.SESSIONS:
                scope = self._scope.model_copy(update={"models": (ONE_MODEL,), "seeds": self._scope.seeds[:1]})
                rates = find_rates(scope, LOADS, self._rates, self._on_finished)
                in_turns = run_sessions(scope, rates, self._cells, self._on_finished)
                findings.apart.append(in_turns)
                findings.rows += apart_rows(in_turns, LOADS)
            case Part.DYNAMO:
                findings.agreements = self._agree()
                findings.rows += agreement_rows(findings.agreements)
        return findings

    def _find(self, loads: tuple[float, ...], model: str | None = None) -> dict[tuple[GridCell, float], float]:
        scope = self._scope if model is None else self._scope.model_copy(update={"models": (model,)})
        return find_rates(scope, loads, self._rates, self._on_finished)

    def _run_apart(self, part: Part) -> list[TableApart]:
        """At rates of their own: what is changed may change how busy workers are."""
        tables: list[TableApart] = []
        for setting in SETTINGS[part]:
            scope = setting.scope(self._scope)
            rates = find_rates(scope, LOADS, self._rates, self._on_finished)
            table = run_table(scope, rates, self._cells, self._on_finished, APART_POLICIES)
            tables.append(TableApart(setting.name, setting.title, table))
        return tables

    def _sweep(self) -> dict[float, float]:
        """Rates in proportion to the one at the first load: beyond saturation no rate makes workers busier."""
        scope = self._scope.model_copy(update={"seeds": self._scope.seeds[:1]})
        anchors = self._find(LOADS[:1])
        rates: Mapping[tuple[GridCell, float], float] = {
            (cell, load): rate_per_s * load / LOADS[0]
            for load in _SWEEP_LOADS
            for (cell, _), rate_per_s in anchors.items()
        }
        table = run_table(scope, rates, self._cells, self._on_finished, policies=(OURS, *BASELINES))
        return {load: table.mean_reduction(load) for load in _SWEEP_LOADS}

    def _agree(self) -> dict[str, Agreement]:
        agreements: dict[str, Agreement] = {}
        for workload in self._scope.workloads:
            trace = read_workload(self._scope.data, workload, self._scope.limit)
            load = LoadSettings(rate_per_s=_DYNAMO_RATES_PER_S[workload], seed=self._scope.seeds[0])
            agreements[workload] = compare_with_dynamo(trace, load, self._scope.cluster)
            self._on_finished(workload)
        return agreements
