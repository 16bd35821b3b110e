"""Runs a benchmark on running graphs part by part, for the commands that start graphs themselves."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import typer
import uvloop

from nebula_bench.results import Measurement
from nebula_bench.serving.document import update_document
from nebula_cli.bench_progress import BenchProgress
from nebula_cli.origin import origin_sentence
from nebula_cli.results_file import write_measurements

_MISSED_EXIT_CODE = 1
_INTERRUPTED_EXIT_CODE = 130

P = TypeVar("P", bound=str)


class MeasuredPart(Protocol):
    """What a benchmark's `measure_part` returns."""

    @property
    def part(self) -> str: ...

    @property
    def markdown(self) -> str: ...

    @property
    def measurements(self) -> Sequence[Measurement]: ...


def run_parts(
    parts: Sequence[P],
    measure: Callable[[P, BenchProgress], Coroutine[object, object, MeasuredPart]],
    *,
    results: Path | None,
    docs: Path | None,
    mark_prefix: str = "",
) -> None:
    """Prints and writes each part as soon as it is measured.

    Args:
        mark_prefix: before the part's name in the marks of `docs`.

    Raises:
        typer.Exit: always; 0, or 1 where a bar was missed, or 130 when interrupted.
    """
    missed: list[Measurement] = []
    try:
        with BenchProgress() as progress, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            for part in parts:
                measured = runner.run(measure(part, progress))
                missed += _publish(measured, results, docs, mark_prefix)
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED_EXIT_CODE) from None
    for one in missed:
        bar = "" if one.bar is None else f", not {one.bar.op} {one.bar.value:g}"
        print(f"nebula: {one.id} is {one.value:g}{bar}", file=sys.stderr)
    raise typer.Exit(_MISSED_EXIT_CODE if missed else 0)


def _publish(measured: MeasuredPart, results: Path | None, docs: Path | None, mark_prefix: str) -> list[Measurement]:
    print(f"## {measured.part}\n\n{measured.markdown}", flush=True)
    if results is not None:
        write_measurements(results, tuple(measured.measurements))
    if docs is not None:
        update_document(docs, {f"{mark_prefix}{measured.part}": f"{measured.markdown}\n{origin_sentence()}"})
    return [one for one in measured.measurements if not one.ok]
