"""Cells' results as tables for people."""

from collections.abc import Callable, Sequence

from rich.table import Table

from nebula_bench.cluster.cell import CellResult

_MISSING = "-"

_COLUMNS: tuple[tuple[str, Callable[[CellResult], str]], ...] = (
    ("p50\nms", lambda cell: _number(cell.summary.ttft_ms.p50)),
    ("p95\nms", lambda cell: _number(cell.summary.ttft_ms.p95)),
    ("p99\nms", lambda cell: _number(cell.summary.ttft_ms.p99)),
    ("queue\nms", lambda cell: _number(cell.summary.breakdown_ms.queue)),
    ("wait\nms", lambda cell: _number(cell.summary.breakdown_ms.transfer_wait)),
    ("comp.\nms", lambda cell: _number(cell.summary.breakdown_ms.compute)),
    ("batch\nms", lambda cell: _number(cell.summary.breakdown_ms.batching)),
    ("busy\n%", lambda cell: _percent(cell.summary.busy_ratio)),
    ("hit\n%", lambda cell: _MISSING if cell.summary.hit_ratio is None else _percent(cell.summary.hit_ratio)),
    ("pre-\nfix", lambda cell: _of_prompt(cell, cell.summary.tokens.prefix_hit)),
    ("lo-\ncal", lambda cell: _of_prompt(cell, cell.summary.tokens.local_hit)),
    ("fet-\nched", lambda cell: _of_prompt(cell, cell.summary.tokens.fetched_hit)),
    ("hel-\npers", lambda cell: _of_prompt(cell, cell.summary.tokens.helper_computed)),
    ("re-\ncomp.", lambda cell: _of_prompt(cell, cell.summary.tokens.recomputed)),
    ("in-\nvalid", lambda cell: _of_prompt(cell, cell.summary.tokens.invalid_hit)),
    ("repea-\nted", lambda cell: _of_prompt(cell, cell.summary.repeated.repeated)),
    ("on pur-\npose", lambda cell: _of_prompt(cell, cell.summary.repeated.on_purpose)),
    ("err.", lambda cell: str(cell.summary.num_errors)),
)

WIDTH = 160
"""Columns of text that the table of cells needs."""

CAPTION = (
    "TTFT quantiles; mean time in queue, waiting for transfers, in own compute, and added by others in the same steps; "
    "share of GPU time in steps. In % of prompt tokens: found, by prefix, in the worker's own store, fetched; computed "
    "by helpers for the request; recomputed by fusion; planned as a hit and not there; computed though a copy existed: "
    "unknown to the router, or on purpose."
)


def render_cells(cells: Sequence[CellResult]) -> Table:
    """A row for each cell; all are of one workload, model and rate."""
    first = cells[0]
    title = f"{first.workload}, {first.model}, {first.rate_per_s:g}/s, {first.summary.num_requests} requests"
    table = Table("policy", *(name for name, _ in _COLUMNS), title=title, caption=CAPTION, pad_edge=False)
    table.columns[0].no_wrap = True
    for column in table.columns[1:]:
        column.justify = "right"
    for cell in cells:
        table.add_row(cell.policy, *(value(cell) for _, value in _COLUMNS))
    return table


def _number(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.1f}"


def _percent(value: float) -> str:
    return f"{value * 100:.1f}"


def _of_prompt(cell: CellResult, num_tokens: int) -> str:
    prompt = cell.summary.tokens.prompt
    return _percent(num_tokens / prompt) if prompt else _MISSING
