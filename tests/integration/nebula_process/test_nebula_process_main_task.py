"""A process whose main loop fails ends, seen from outside."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

PROGRAM = """
import asyncio
from nebula_process.logs import configure_logs
from nebula_process.main_task import exit_when_failed

async def loop():
    await asyncio.sleep(0.01)
    {body}

async def main():
    task = asyncio.create_task(loop(), name="engine")
    exit_when_failed(task)
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.sleep(0.01)
    print("alive")

configure_logs("info")
asyncio.run(main())
"""


def run(body: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_a_failed_main_task_ends_the_process_and_says_why() -> None:
    done = run("raise ValueError('the store is inconsistent')")
    assert (done.returncode, done.stdout) == (1, "")
    assert "main_task_failed" in done.stderr
    assert "ValueError: the store is inconsistent" in done.stderr


@pytest.mark.parametrize("body", ["return", "await asyncio.sleep(60)"], ids=["returns", "is cancelled"])
def test_a_main_task_that_ends_in_another_way_ends_nothing_else(body: str) -> None:
    done = run(body)
    assert (done.returncode, done.stdout) == (0, "alive\n")
