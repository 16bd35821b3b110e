"""The paper's table and ours, side by side, as Markdown."""

from collections.abc import Iterable, Mapping, Sequence

from nebula_bench.paper.accounting import ErrorReduction
from nebula_bench.paper.dynamo_agreement import Agreement
from nebula_bench.paper.grid import BOUND, FARTHER_BOUND, OURS
from nebula_bench.paper.main_table import MainTable
from nebula_bench.paper.recovery import WorkloadRecovery
from nebula_bench.paper.rows import PAPER
from nebula_bench.paper.split import Division, WindowSpread
from nebula_bench.policies.catalogue import BASELINES
from nebula_bench.results import Measurement


def rows_markdown(rows: Iterable[Measurement]) -> str:
    lines = ["| row | paper | at least | measured | |", "|-|-|-|-|-|"]
    for row in rows:
        bar = "" if row.bar is None else f"{row.bar.op} {row.bar.value:.3g}"
        verdict = "" if row.bar is None else ("met" if row.ok else "missed")
        lines.append(f"| {row.id} | {_paper_of(row.id)} | {bar} | {row.value:.3g} {_unit(row.unit)} | {verdict} |")
    return "\n".join(lines) + "\n"


def cells_markdown(table: MainTable) -> str:
    """Median TTFT of every policy in every cell, in milliseconds."""
    policies = [policy for policy in (*BASELINES, OURS, BOUND, FARTHER_BOUND) if policy in table.cells[0].timings]
    lines = [
        f"| load | workload | model | rate, 1/s | {' | '.join(policies)} | reduction | of p95 |",
        "|" + "-|" * (len(policies) + 6),
    ]
    for cell in table.cells:
        figures = [_figure(policy, cell.timings[policy].p50_ms, cell.strongest) for policy in policies]
        lines.append(
            f"| {cell.load:.0%} | {cell.cell.workload} | {cell.cell.model} | {cell.rate_per_s:g} | "
            f"{' | '.join(figures)} | {cell.reduction:.1%} | {cell.p95_reduction:.1%} |"
        )
    return "\n".join(lines) + "\n"


def accounting_markdown(title: str, reductions: Sequence[ErrorReduction]) -> str:
    lines = [f"| {title} | setting | other view | ours |", "|-|-|-|-|"]
    for one in reductions:
        lines.append(f"| {one.workload} | {one.setting} | {one.other_ratio:.2%} | {one.our_ratio:.3%} |")
    return "\n".join(lines) + "\n"


def split_markdown(divisions: Sequence[Division]) -> str:
    """Hit ratios in percent, and the change of the median TTFT."""
    lines = [
        "| workload | store, tokens | one order | halves | best fixed | ours | TTFT to one order | to halves |",
        "|-|-|-|-|-|-|-|-|",
    ]
    for one in divisions:
        ratios = (one.one_lru.hit_ratio, one.halves.hit_ratio, one.best_static_hit_ratio, one.ours.hit_ratio)
        lines.append(
            f"| {one.workload} | {one.capacity_tokens:,} | {' | '.join(f'{ratio:.1%}' for ratio in ratios)} | "
            f"{one.ttft_ratio_to(one.one_lru):+.1%} | {one.ttft_ratio_to(one.halves):+.1%} |"
        )
    return "\n".join(lines) + "\n"


def windows_markdown(spreads: Sequence[WindowSpread]) -> str:
    """Median TTFT in milliseconds by the number of requests between two looks at the division."""
    windows = sorted(spreads[0].by_window_ms)
    lines = [
        f"| workload | {' | '.join(f'{window} requests' for window in windows)} | the default loses |",
        "|" + "-|" * (len(windows) + 2),
    ]
    for one in spreads:
        times = " | ".join(f"{one.by_window_ms[window]:.1f} ms" for window in windows)
        lines.append(f"| {one.workload} | {times} | {one.lost_ms:.2f} ms |")
    return "\n".join(lines) + "\n"


def recovery_markdown(recoveries: Sequence[WorkloadRecovery]) -> str:
    lines = [
        "| workload | ideal hit ratio | ours | behind Dynamo's KV cost | recovered, unlimited stores |",
        "|-|-|-|-|-|",
    ]
    for one in recoveries:
        lines.append(
            f"| {one.workload} | {one.ideal_hit_ratio:.1%} | {one.our_hit_ratio:.1%} | {one.reference_hit_ratio:.1%} | "
            f"{one.recovered_share:.1%} |"
        )
    return "\n".join(lines) + "\n"


def agreement_markdown(agreements: Mapping[str, Agreement]) -> str:
    lines = ["| workload | points of hit ratio apart | median TTFT apart |", "|-|-|-|"]
    for workload, one in agreements.items():
        lines.append(f"| {workload} | {one.hit_points:.2f} | {one.ttft_ratio:.1%} |")
    return "\n".join(lines) + "\n"


def _figure(policy: str, p50_ms: float, strongest: str) -> str:
    return f"**{p50_ms:.1f}**" if policy == strongest else f"{p50_ms:.1f}"


def _paper_of(row_id: str) -> str:
    return next((text for name, text in PAPER.items() if row_id.startswith(name)), "")


def _unit(unit: str) -> str:
    return "" if unit == "ratio" else unit
