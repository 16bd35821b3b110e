"""The comparison as a table."""

from collections.abc import Sequence

from nebula_bench.split.comparison import Division, SplitRow

_COLUMNS = (
    "workload",
    "store, tokens a worker",
    "one LRU",
    "halves",
    "best static (share)",
    "controller (share at the end)",
    "against the best, points",
)


def to_markdown(rows: Sequence[SplitRow]) -> str:
    """Hit ratio / saved share of prefill time, both in percent; differences in points of either."""
    head = f"| {' | '.join(_COLUMNS)} |\n|{'-|' * len(_COLUMNS)}\n"
    return head + "".join(_line(row) for row in rows)


def _line(row: SplitRow) -> str:
    best, ours = row.outcomes[Division.BEST_STATIC], row.outcomes[Division.CONTROLLER]
    cells = [row.workload, f"{row.store_tokens:,}"]
    for division, outcome in row.outcomes.items():
        cell = f"{100 * outcome.hit_ratio:.1f} / {100 * outcome.saved_ratio:.1f}"
        if division in (Division.BEST_STATIC, Division.CONTROLLER) and outcome.prefix_ratio is not None:
            cell += f" ({outcome.prefix_ratio:.2f})"
        cells.append(cell)
    hits, saved = ours.hit_ratio - best.hit_ratio, ours.saved_ratio - best.saved_ratio
    cells.append(f"{100 * hits:+.1f} / {100 * saved:+.1f}")
    return f"| {' | '.join(cells)} |\n"
