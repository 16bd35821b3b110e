"""Writes what was found: Markdown and plots."""

from pathlib import Path

from nebula_bench.errors import ResultsError
from nebula_bench.paper.comparison import Findings
from nebula_bench.paper.grid import LOADS
from nebula_bench.paper.markdown import (
    accounting_markdown,
    agreement_markdown,
    cells_markdown,
    recovery_markdown,
    rows_markdown,
    split_markdown,
    windows_markdown,
)
from nebula_bench.paper.part import Part

_TITLES = {
    Part.MAIN: "Nebula beside its baselines and bounds, in virtual time",
    Part.SWEEP: "From 20 % to 120 % of the load",
    Part.RECOVERY: "What segments recover of what prefix caching misses",
    Part.ACCOUNTING: "Wrong beliefs about who has what",
    Part.SPLIT: "How stores are divided",
    Part.CACHEBLEND: "With CacheBlend instead of LegoLink",
    Part.LINKS: "Other links",
    Part.CAPACITIES: "Other stores",
    Part.HYBRID: "A model with recurrent layers, as if it had none",
    Part.PAPER_RATES: "The paper's own rates",
    Part.SESSIONS: "Sessions that wait for each answer",
    Part.DYNAMO: "Agreement with Dynamo's own replay",
}


def write_report(findings: Findings, folder: Path, origin: str) -> None:
    """The part's page, `PART.md`, and its figures.

    Args:
        origin: a sentence that says by which command and code the page was made.

    Raises:
        ResultsError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{findings.part}.md").write_text(_markdown(findings, origin))
        _write_plots(findings, folder)
    except OSError as error:
        raise ResultsError(f"{folder}: {error.strerror}") from error


def _markdown(findings: Findings, origin: str) -> str:
    parts = [f"# {_TITLES[findings.part]}\n", f"{origin}\n", rows_markdown(findings.rows)]
    if findings.table is not None:
        parts += ["## Median TTFT in milliseconds; the strongest baseline is bold\n", cells_markdown(findings.table)]
        parts += [f"![{load:.0%} load](load{load * 100:.0f}.png)\n" for load in LOADS]
    if findings.sweep:
        parts.append("![Reduction over load](sweep.png)\n")
    if findings.recoveries:
        parts.append(recovery_markdown(findings.recoveries))
    if findings.divisions:
        parts.append(split_markdown(findings.divisions))
    if findings.windows:
        parts.append(windows_markdown(findings.windows))
    if findings.invalid:
        parts.append(accounting_markdown("invalid hits, of prompt tokens", findings.invalid))
    if findings.repeated:
        parts.append(accounting_markdown("repeated computation, of prompt tokens", findings.repeated))
    if findings.agreements:
        parts.append(agreement_markdown(findings.agreements))
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
