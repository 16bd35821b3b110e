"""Cells' results as tables for people."""

from collections.abc import Callable, Sequence

from rich.table import Table

from nebula_bench.cluster.cell import CellResult

_MISSING = "-"

_ROWS: tuple[tuple[str, Callable[[CellResult], str]], ...] = (
    ("TTFT p50, ms", lambda cell: _number(cell.summary.ttft_ms.p50)),
    ("TTFT p95, ms", lambda cell: _number(cell.summary.ttft_ms.p95)),
    ("TTFT p99, ms", lambda cell: _number(cell.summary.ttft_ms.p99)),
    ("mean: queue", lambda cell: _number(cell.summary.breakdown_ms.queue)),
    ("mean: transfer wait", lambda cell: _number(cell.summary.breakdown_ms.transfer_wait)),
    ("mean: compute", lambda cell: _number(cell.summary.breakdown_ms.compute)),
    ("mean: batching", lambda cell: _number(cell.summary.breakdown_ms.batching)),
    ("mean: messages", lambda cell: _number(cell.summary.breakdown_ms.messages)),
    ("GPU busy", lambda cell: _share(cell.summary.busy_ratio)),
    ("hit ratio", lambda cell: _MISSING if cell.summary.hit_ratio is None else _share(cell.summary.hit_ratio)),
    ("prefix hit", lambda cell: _of_prompt(cell, cell.summary.tokens.prefix_hit)),
    ("segment hit, local", lambda cell: _of_prompt(cell, cell.summary.tokens.local_hit)),
    ("segment hit, fetched", lambda cell: _of_prompt(cell, cell.summary.tokens.fetched_hit)),
    ("computed by helpers", lambda cell: _of_prompt(cell, cell.summary.tokens.helper_computed)),
    ("computed", lambda cell: _of_prompt(cell, cell.summary.tokens.computed)),
    ("recomputed by fusion", lambda cell: _of_prompt(cell, cell.summary.tokens.recomputed)),
    ("invalid hits", lambda cell: _of_prompt(cell, cell.summary.tokens.invalid_hit)),
    ("repeated", lambda cell: _of_prompt(cell, cell.summary.repeated.repeated)),
    ("computed on purpose", lambda cell: _of_prompt(cell, cell.summary.repeated.on_purpose)),
    ("planned hit, computed", lambda cell: _of_prompt(cell, cell.summary.repeated.fallback)),
    ("retries", lambda cell: str(cell.summary.num_retries)),
    ("errors", lambda cell: str(cell.summary.num_errors)),
)


def render_cells(cells: Sequence[CellResult]) -> Table:
    """A column for each cell; all are of one workload, model and rate."""
    first = cells[0]
    title = f"{first.workload}, {first.model}, {first.rate_per_s:g}/s, {first.summary.num_requests} requests"
    table = Table("", *(cell.policy for cell in cells), title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, value in _ROWS:
        table.add_row(name, *map(value, cells))
    return table


def _number(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.1f}"


def _share(value: float) -> str:
    return f"{value:.1%}"


def _of_prompt(cell: CellResult, num_tokens: int) -> str:
    prompt = cell.summary.tokens.prompt
    return _share(num_tokens / prompt) if prompt else _MISSING
