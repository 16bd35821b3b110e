"""Writes what was found: Markdown and plots."""

from pathlib import Path

from nebula_bench.errors import ResultsError
from nebula_bench.paper.comparison import Findings
from nebula_bench.paper.grid import LOADS
from nebula_bench.paper.markdown import accounting_markdown, cells_markdown, rows_markdown, split_markdown


def write_report(findings: Findings, folder: Path) -> None:
    """`paper.md` and its figures.

    Raises:
        ResultsError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "paper.md").write_text(_markdown(findings))
        _write_plots(findings, folder)
    except OSError as error:
        raise ResultsError(f"{folder}: {error.strerror}") from error


def _markdown(findings: Findings) -> str:
    parts = ["# Nebula beside the paper, in virtual time\n", rows_markdown(findings.rows)]
    if findings.table is not None:
        parts += ["## Median TTFT in milliseconds; the strongest baseline is bold\n", cells_markdown(findings.table)]
        parts += [f"![{load:.0%} load](load{load * 100:.0f}.png)\n" for load in LOADS]
    if findings.sweep:
        parts.append("![Reduction over load](sweep.png)\n")
    if findings.divisions:
        parts.append(split_markdown(findings.divisions))
    if findings.invalid:
        parts.append(accounting_markdown("invalid hits, of prompt tokens", findings.invalid))
    if findings.repeated:
        parts.append(accounting_markdown("repeated computation, of prompt tokens", findings.repeated))
    for apart in findings.apart:
        parts += [f"## {apart.title}\n", cells_markdown(apart.table)]
    return "\n".join(parts)


def _write_plots(findings: Findings, folder: Path) -> None:
    # The plotting library takes a second to import; a run without plots does not need it.
    from nebula_bench.paper.plots import plot_cells, plot_sweep

    if findings.table is not None:
        for load in LOADS:
            plot_cells(findings.table, load, folder / f"load{load * 100:.0f}.png")
    if findings.sweep:
        plot_sweep(findings.sweep, folder / "sweep.png")
