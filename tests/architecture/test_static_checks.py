"""The checks of `make check` as tests, so that `make test` alone is complete."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKS = {
    "format": ("ruff", "format", "--check", "--quiet", "."),
    "lint": ("ruff", "check", "--quiet", "."),
    "types": ("mypy", "--no-error-summary"),
    "imports": ("lint-imports",),
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", CHECKS)
def test_check_passes(name: str) -> None:
    program, *arguments = CHECKS[name]
    command = [str(Path(sys.executable).parent / program), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=230)
    assert done.returncode == 0, done.stdout + done.stderr
