"""The tests of what may go wrong between workers, as Markdown and as a row of the results file."""

from collections.abc import Sequence

from nebula_bench.counted_tests import TestCase
from nebula_bench.results import Bar, Measurement


def faults_measurements(cases: Sequence[TestCase]) -> tuple[Measurement, ...]:
    passed = sum(case.has_passed for case in cases)
    return (Measurement(id="fault_cases", value=passed, unit="cases", bar=Bar("==", max(1, len(cases)))),)


def faults_markdown(cases: Sequence[TestCase]) -> str:
    failed = [case.name for case in cases if not case.has_passed]
    listed = "".join(f"- `{name}`\n" for name in failed)
    return f"{len(cases) - len(failed)} of {len(cases)} tests of transfers and their faults pass.\n{listed}"
