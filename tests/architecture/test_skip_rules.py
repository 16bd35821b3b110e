"""What the suite does with a skipped test, seen from outside: a suite of one test with this project's conftest."""

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
PASSED, FAILED, NOT_COLLECTED = 0, 1, 2
"""Exit codes of pytest; a run with skips alone has passed."""


def run_suite(folder: Path, test: str, *, ci: str, plugins: tuple[str, ...] = ()) -> int:
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  integration\n  e2e\n  gpu\n")
    (folder / "test_one.py").write_text(f"import pytest\n\n{test}\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, str(folder)],
        env={"CI": ci, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        check=False,
        timeout=60,
    ).returncode


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("@pytest.mark.integration\ndef test_it():\n    pytest.skip('no nats-server')", FAILED),
        ("def test_it():\n    pytest.skip('not today')", FAILED),
        ('def test_it():\n    pytest.skip("Dynamo\'s replay needs ai-dynamo 1.4.2")', PASSED),
        ("@pytest.mark.skip(reason='not today')\ndef test_it():\n    pass", FAILED),
        ("pytest.importorskip('no_such_engine')\n\ndef test_it():\n    pass", NOT_COLLECTED),
        ("def test_it(shared_dir):\n    pass", PASSED),
        ("@pytest.mark.e2e\ndef test_it(shared_dir):\n    pass", FAILED),
        ("@pytest.mark.xfail\ndef test_it():\n    raise ValueError", PASSED),
    ],
    ids=["no server", "no reason", "no replay", "mark", "no module", "no data", "no data, e2e", "expected failure"],
)
def test_in_ci_only_a_missing_data_folder_excuses_a_skip(tmp_path: Path, test: str, expected: int) -> None:
    assert run_suite(tmp_path, test, ci="true") == expected


def test_outside_ci_a_skip_is_a_skip(tmp_path: Path) -> None:
    skipping = "@pytest.mark.integration\ndef test_it():\n    pytest.skip('no nats-server')"
    assert run_suite(tmp_path, skipping, ci="") == PASSED


def test_a_process_that_tests_for_another_excuses_no_more(tmp_path: Path) -> None:
    skipping = "def test_it():\n    pytest.skip('not today')"
    assert run_suite(tmp_path, skipping, ci="true", plugins=("-p", "xdist.plugin", "-n", "1")) == FAILED
