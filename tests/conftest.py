"""Rules for every test: what may be skipped where, and the fixtures shared by all kinds of test."""

import gc
import os
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter
from hypothesis import settings

from nebula_serve.smollm2 import ensure_smollm2

# The same examples in every run, so that a change is judged by itself; HYPOTHESIS_PROFILE=search looks for new ones.
# No deadline: on cores shared with others an example may take any time.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

SHARED_VARIABLE = "NEBULA_SHARED"
WITHOUT_SHARED = f"{SHARED_VARIABLE} does not name the folder of workload traces"
WITHOUT_GPU = "no NVIDIA GPU"
WITHOUT_REPLAY = "Dynamo's replay needs ai-dynamo 1.4.2"
"""CI runs these on the older Dynamo, `make test-dynamo-1.4`."""
ALLOWED_IN_CI = (WITHOUT_SHARED, WITHOUT_GPU, WITHOUT_REPLAY)
"""Reasons for which CI may skip a test; a test of a real NATS, Dynamo or vLLM has none."""

SLOW_FIRST = ("architecture", "e2e", "integration", "contract", "property", "unit")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of workload traces and calibration data beside the project; skips where there is none."""
    folder = os.environ.get(SHARED_VARIABLE)
    if not folder or not Path(folder).is_dir():
        pytest.skip(WITHOUT_SHARED)
    return Path(folder)


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The folder of the small real model, as `make model` makes it; made here when it is missing."""
    return ensure_smollm2(Path(__file__).parents[1] / "models", print)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not Path("/dev/nvidia0").exists():
        pytest.skip(WITHOUT_GPU)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With several processes, each takes a file at a time, and the files that take long begin first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: next((i for i, kind in enumerate(SLOW_FIRST) if kind in item.path.parts), 0))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """One line for each of the things without which a part of the tests did not run."""
    shared = os.environ.get(SHARED_VARIABLE)
    missing = {
        "vllm": None if find_spec("vllm") else "vLLM is not installed",
        "nixl": None if find_spec("nixl") else "NIXL is not installed",
        SHARED_VARIABLE.lower(): None if shared and Path(shared).is_dir() else WITHOUT_SHARED,
    }
    reasons = [_skip_reason(report).lower() for report in terminalreporter.stats.get("skipped", [])]
    for word, told in missing.items():
        if told:
            num = sum(word in reason for reason in reasons)
            terminalreporter.write_line(f"{told}: {num} tests skipped, and files that need it as a whole")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and _in_ci():
        reason = _skip_reason(report)
        starts_services = bool(item.get_closest_marker("integration") or item.get_closest_marker("e2e"))
        allowed = any(one in reason for one in (WITHOUT_GPU, WITHOUT_REPLAY)) or (
            WITHOUT_SHARED in reason and not starts_services
        )
        if not allowed:
            _turn_into_failure(report, reason)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects without garbage collection.

    A finalizer that runs while CPython 3.11 converts a syntax tree can end the run with "AST constructor recursion
    depth mismatch"; collecting parses every test file.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and _in_ci():
        reason = _skip_reason(report)
        if not any(allowed in reason for allowed in ALLOWED_IN_CI):
            _turn_into_failure(report, reason)
    return report


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


def _turn_into_failure(report: pytest.TestReport | pytest.CollectReport, reason: str) -> None:
    report.outcome = "failed"
    report.longrepr = f"CI may not skip this: {reason}"
