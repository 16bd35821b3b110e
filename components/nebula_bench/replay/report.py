"""A replay's summary as tables for people, and as one JSON record for programs."""

from collections.abc import Iterator

import msgspec
from rich.console import Group
from rich.table import Table

from nebula_bench.replay.outcome import RequestOutcome
from nebula_bench.replay.settings import ReplaySettings
from nebula_bench.replay.summary import Quantiles, ReplaySummary

_MAX_ERROR_KINDS = 5
_MISSING = "-"


def render_summary(summary: ReplaySummary) -> Group:
    return Group(*(table for table in _tables(summary) if table.row_count))


def to_json(summary: ReplaySummary, outcomes: list[RequestOutcome], settings: ReplaySettings, trace_name: str) -> bytes:
    """The settings, the summary and a row for each request; times in the client's seconds, not scaled."""
    record = {
        "trace": trace_name,
        "settings": settings.model_dump(mode="json"),
        "summary": summary,
        "requests": [_request_row(outcome) for outcome in sorted(outcomes, key=lambda one: one.position)],
    }
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def _tables(summary: ReplaySummary) -> Iterator[Table]:
    yield _requests_table(summary)
    yield _tokens_table(summary)
    yield _segments_table(summary)
    yield _errors_table(summary)


def _requests_table(summary: ReplaySummary) -> Table:
    table = Table(title="Requests (interrupted)" if summary.is_interrupted else "Requests", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    warmup = f" ({summary.num_warmup} of them warm-up)" if summary.num_warmup else ""
    table.add_row("finished", f"{summary.num_requests}{warmup}")
    table.add_row("errors", str(summary.num_errors), style="bold red" if summary.num_errors else None)
    table.add_row("sent per second", _number(summary.sent_per_s, 2))
    table.add_row("TTFT p50 / p95 / p99", _milliseconds(summary.ttft_ms))
    table.add_row("prefill workers", str(summary.num_workers))
    table.add_row("event loop lag p50 / p95 / p99", _milliseconds(summary.loop_lag_ms))
    table.add_row("sent late p50 / p95 / p99", _milliseconds(summary.send_delay_ms))
    return table


def _tokens_table(summary: ReplaySummary) -> Table:
    tokens = summary.tokens
    table = Table("tokens", "number", "share", title=f"Tokens of {summary.num_receipts} receipts")
    for column in table.columns[1:]:
        column.justify = "right"
    rows = {
        "prefix hit": tokens.prefix_hit,
        "segment hit, local": tokens.local_hit,
        "segment hit, fetched": tokens.fetched_hit,
        "computed by helpers": tokens.helper_computed,
        "computed": tokens.computed,
        "prompt": tokens.prompt,
    }
    for name, count in rows.items() if tokens.prompt else ():
        table.add_row(name, f"{count:,}", f"{count / tokens.prompt:.1%}")
    if summary.hit_ratio is not None:
        table.add_section()
        table.add_row("hit ratio", "", f"{summary.hit_ratio:.1%}", style="bold")
        table.add_row("recomputed by fusion", f"{tokens.recomputed:,}", f"{tokens.recomputed / tokens.prompt:.1%}")
        table.add_row("invalid hits", f"{tokens.invalid_hit:,}", f"{tokens.invalid_hit / tokens.prompt:.1%}")
    return table


def _segments_table(summary: ReplaySummary) -> Table:
    counts = summary.segments
    table = Table("source", "planned", "done", title=f"Segments by source: {summary.num_source_kinds} kinds done")
    for column in table.columns[1:]:
        column.justify = "right"
    if any(counts.planned.values()):
        for source, planned in counts.planned.items():
            table.add_row(source, f"{planned:,}", f"{counts.done[source]:,}")
    if counts.fallbacks:
        table.add_section()
        for reason, count in counts.fallbacks.items():
            table.add_row(f"computed instead: {reason}", "", f"{count:,}")
    return table


def _errors_table(summary: ReplaySummary) -> Table:
    table = Table("reason", "requests", title="Errors")
    table.columns[1].justify = "right"
    kinds = list(summary.errors.items())
    for reason, count in kinds[:_MAX_ERROR_KINDS]:
        table.add_row(reason, str(count))
    if len(kinds) > _MAX_ERROR_KINDS:
        rest = sum(count for _, count in kinds[_MAX_ERROR_KINDS:])
        table.add_row(f"{len(kinds) - _MAX_ERROR_KINDS} further reasons", str(rest))
    return table


def _request_row(outcome: RequestOutcome) -> dict[str, object]:
    receipt = outcome.receipt
    row: dict[str, object] = {
        "position": outcome.position,
        "prompt_tokens": outcome.prompt_tokens,
        "scheduled_s": outcome.scheduled_s,
        "sent_s": outcome.sent_s,
        "ttft_s": outcome.ttft_s,
        "finished_s": outcome.finished_s,
        "error": outcome.error,
    }
    if receipt is not None:
        row |= {
            "request_id": receipt.request_id,
            "worker_id": receipt.worker.worker_id,
            "prefix_hit_tokens": receipt.prefix_hit_tokens,
            "local_hit_tokens": receipt.local_hit_tokens,
            "fetched_hit_tokens": receipt.fetched_hit_tokens,
            "recomputed_tokens": receipt.recomputed_tokens,
            "computed_tokens": receipt.computed_tokens,
            "timing": receipt.timing,
        }
    return row


def _milliseconds(quantiles: Quantiles) -> str:
    values = (quantiles.p50, quantiles.p95, quantiles.p99)
    return " / ".join(_number(value, 1) for value in values) + " ms"


def _number(value: float | None, digits: int) -> str:
    return _MISSING if value is None else f"{value:,.{digits}f}"
