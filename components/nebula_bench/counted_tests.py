"""Tests of the project as a figure: so many of them pass."""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from nebula_bench.errors import BenchError

_FAILURES = ("failure", "error", "skipped")
_LAST_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class TestCase:
    name: str
    has_passed: bool


async def run_tests(tests: Sequence[str]) -> tuple[TestCase, ...]:
    """
    Raises:
        BenchError: a file of tests is missing, or pytest cannot run.
    """
    missing = [test for test in tests if not Path(test).is_file()]
    if missing:
        raise BenchError(f"no tests at {missing[0]}; run this in the project's folder")
    with tempfile.TemporaryDirectory(prefix="nebula-bench-") as folder:
        report = Path(folder) / "report.xml"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *tests),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        if not report.is_file():
            raise BenchError(f"pytest made no report: {output.decode(errors='replace')[-_LAST_CHARACTERS:]}")
        return read_cases(report.read_text())


def read_cases(report: str) -> tuple[TestCase, ...]:
    """Of a report in JUnit's format. A test that was skipped has not passed."""
    return tuple(
        TestCase(
            name=f"{case.get('classname', '')}::{case.get('name', '')}",
            has_passed=all(case.find(kind) is None for kind in _FAILURES),
        )
        for case in ElementTree.fromstring(report).iter("testcase")
    )
