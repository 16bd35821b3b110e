"""Result files: what was measured, against which bar, by which command, on which commit and machine."""

import operator
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

import msgspec

from nebula_bench.errors import ResultsError

Operator = Literal["<=", ">=", "=="]

_COMPARE: dict[Operator, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
}


class Bar(msgspec.Struct, frozen=True):
    """What a value must satisfy."""

    op: Operator
    value: float

    def is_met_by(self, value: float) -> bool:
        return _COMPARE[self.op](value, self.value)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A number before it is known where and how it was measured. Without a bar it is only reported."""

    id: str
    value: float
    unit: str
    bar: Bar | None = None

    @property
    def ok(self) -> bool:
        return self.bar is None or self.bar.is_met_by(self.value)


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    value: float
    unit: str
    bar: Bar | None
    ok: bool
    command: str
    commit: str
    machine: str


def result_rows(
    measurements: Iterable[Measurement], *, command: str, commit: str, machine: str
) -> tuple[ResultRow, ...]:
    return tuple(
        ResultRow(
            id=measured.id,
            value=measured.value,
            unit=measured.unit,
            bar=measured.bar,
            ok=measured.ok,
            command=command,
            commit=commit,
            machine=machine,
        )
        for measured in measurements
    )


def read_rows(path: Path) -> tuple[ResultRow, ...]:
    """The rows of a results file; none when there is no such file.

    Raises:
        ResultsError: the file is there but is no list of rows.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=tuple[ResultRow, ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as error:
        raise ResultsError(f"results file {path}: {error}") from error


def update_rows(path: Path, rows: Iterable[ResultRow]) -> None:
    """Puts `rows` into the file: in the place of rows of the same id, new ids at the end. A reader sees old or new.

    Raises:
        ResultsError: the file is no list of rows, or its folder cannot be written.
    """
    merged = {row.id: row for row in read_rows(path)}
    merged |= {row.id: row for row in rows}
    _replace_file(path, _render(merged.values()))


def _render(rows: Iterable[ResultRow]) -> bytes:
    """A JSON list with one row a line, so that a changed row is a changed line."""
    lines = (b"  " + msgspec.json.encode(row) for row in rows)
    return b"[\n" + b",\n".join(lines) + b"\n]\n"


def _replace_file(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ResultsError(f"results file {path}: {error.strerror}") from error
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        fresh.chmod(0o644)
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise ResultsError(f"results file {path}: {error.strerror}") from error
