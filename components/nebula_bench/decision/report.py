"""The decision benchmark's numbers as a table, as Markdown and as rows of a results file."""

from collections.abc import Callable, Iterable, Sequence

from rich.table import Table

from nebula_bench.decision.measured_point import DecisionPoint
from nebula_bench.decision.timing import Repeated
from nebula_bench.results import Bar, Measurement

_US_PER_S = 1e6
_RATIO_BAR = Bar("<=", 3.0)
_BARRED = (8, 16_000)
"""Workers and tokens of the point that has a bar."""

_Cell = Callable[[DecisionPoint], str]

_COLUMNS: dict[str, _Cell] = {
    "workers": lambda point: str(point.num_workers),
    "tokens": lambda point: f"{point.prompt_tokens:,}",
    "Nebula, marked": lambda point: _us(point.marked),
    "Nebula, by content": lambda point: _us(point.unmarked),
    "list to array": lambda point: _us(point.reading),
    "Dynamo, booked": lambda point: _us(point.dynamo_booking),
    "Dynamo, asked only": lambda point: _us(point.dynamo_query),
    "ratio": lambda point: f"{point.ratio:.2f}",
}


def render_points(points: Iterable[DecisionPoint]) -> Table:
    table = Table(title="Median time of a decision, us")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for point in points:
        table.add_row(*(cell(point) for cell in _COLUMNS.values()))
    return table


def to_markdown(points: Iterable[DecisionPoint]) -> str:
    header = [f"| {' | '.join(_COLUMNS)} |", "|" + "-:|" * len(_COLUMNS)]
    rows = [f"| {' | '.join(cell(point) for cell in _COLUMNS.values())} |" for point in points]
    return "\n".join(header + rows) + "\n"


def decision_measurements(points: Sequence[DecisionPoint]) -> tuple[Measurement, ...]:
    """A ratio for each point, and the times behind the one with a bar."""
    measurements = []
    for point in points:
        place = f"{point.prompt_tokens // 1000}k_{point.num_workers}w"
        is_barred = (point.num_workers, point.prompt_tokens) == _BARRED
        bar = _RATIO_BAR if is_barred else None
        measurements.append(Measurement(id=f"decision_ratio_{place}", value=point.ratio, unit="ratio", bar=bar))
        if is_barred:
            times = {
                "decision_marked": point.marked,
                "decision_unmarked": point.unmarked,
                "list_to_array": point.reading,
                "dynamo_best_worker": point.dynamo_booking,
            }
            measurements += [
                Measurement(id=f"{name}_us_{place}", value=repeated.median_s * _US_PER_S, unit="us")
                for name, repeated in times.items()
            ]
    return tuple(measurements)


def _us(repeated: Repeated) -> str:
    return f"{repeated.median_s * _US_PER_S:,.0f}"
