"""The `--row` option: which number of a run goes into a results file, under which id and against which bar."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from nebula_bench.replay.measures import MEASURES
from nebula_bench.replay.summary import ReplaySummary
from nebula_bench.results import Bar, Measurement
from nebula_cli.errors import CliError

_ROW = re.compile(r"(?P<id>[\w.-]+)=(?P<measure>\w+)(?:(?P<op><=|>=|==)(?P<value>[^<>=]+))?")
ROW_FORMAT = "ID=MEASURE, or with a bar ID=MEASURE<=NUMBER, >= or =="


@dataclass(frozen=True, slots=True)
class RowRequest:
    id: str
    measure: str
    bar: Bar | None


def parse_row(text: str) -> RowRequest:
    """
    Raises:
        CliError: not of the form `ROW_FORMAT`, or no such measure.
    """
    match = _ROW.fullmatch(text)
    if match is None:
        raise CliError(f"--row {text!r}: write {ROW_FORMAT}")
    if match["measure"] not in MEASURES:
        raise CliError(f"--row {text!r}: no measure {match['measure']!r}; there are {', '.join(MEASURES)}")
    return RowRequest(match["id"], match["measure"], _parse_bar(text, match["op"], match["value"]))


def measure_rows(requests: Iterable[RowRequest], summary: ReplaySummary) -> tuple[Measurement, ...]:
    """
    Raises:
        CliError: the run did not measure what a row asks for.
    """
    measurements = []
    for request in requests:
        measure = MEASURES[request.measure]
        value = measure.read(summary)
        if value is None:
            raise CliError(f"--row {request.id}: this run measured no {request.measure}")
        measurements.append(Measurement(id=request.id, value=value, unit=measure.unit, bar=request.bar))
    return tuple(measurements)


def _parse_bar(text: str, op: str | None, value: str | None) -> Bar | None:
    if op is None or value is None:
        return None
    try:
        return msgspec.convert({"op": op, "value": float(value)}, type=Bar)
    except ValueError as error:
        raise CliError(f"--row {text!r}: {value!r} is not a number") from error
