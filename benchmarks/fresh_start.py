"""Times the README's commands on a fresh clone with no venv: `make serve`, the printed curl, `make test`.

Run it with the project's own Python: `.venv/bin/python benchmarks/fresh_start.py`. It clones the committed state into a
temporary folder, so what is not committed does not count.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nebula_bench.provenance import describe_command, describe_commit, describe_machine
from nebula_bench.results import Bar, Measurement, result_rows, update_rows

_PROJECT = Path(__file__).resolve().parents[1]
_RESULTS = _PROJECT / "benchmarks" / "results" / "serve.json"
_SERVE_BUDGET_S = 1200
_STOP_BUDGET_S = 30
_TEST_BAR_S = 600.0


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--port", type=int, default=8765, help="port for the graph's frontend")
    arguments.add_argument("--results", type=Path, default=_RESULTS, help="file that takes the rows")
    arguments.add_argument("--tests", action="store_true", help="time `make test` in the clone too")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "nebula"
        subprocess.run(["git", "clone", "--quiet", str(_PROJECT), str(clone)], check=True)
        setup_s = _time_setup(clone)
        print(f"make setup: {setup_s:.0f} s")
        first_answer_s, answer = _time_first_answer(clone, options.port)
        print(f"make serve and the printed curl: {first_answer_s:.1f} s; it answered {answer!r}")
        measured = [
            Measurement(id="setup_s", value=round(setup_s, 1), unit="s"),
            Measurement(id="first_answer_s", value=round(first_answer_s, 1), unit="s"),
        ]
        if options.tests:
            test_s = _time_tests(clone)
            print(f"make test: {test_s:.0f} s")
            measured.append(Measurement(id="test_s", value=round(test_s, 1), unit="s", bar=Bar("<=", _TEST_BAR_S)))
    rows = result_rows(
        measured,
        command=describe_command("python benchmarks/fresh_start.py", sys.argv[1:]),
        commit=describe_commit(_PROJECT),
        machine=describe_machine(),
    )
    update_rows(options.results, rows)
    return 0


def _time_setup(clone: Path) -> float:
    started_s = time.monotonic()
    subprocess.run(["make", "--silent", "setup"], cwd=clone, check=True, env=_bare_environment())
    return time.monotonic() - started_s


def _time_tests(clone: Path) -> float:
    """Raises CalledProcessError when a test fails: such a time would say nothing."""
    started_s = time.monotonic()
    subprocess.run(["make", "--silent", "test", "ARGS=-q"], cwd=clone, check=True, env=_bare_environment())
    return time.monotonic() - started_s


def _time_first_answer(clone: Path, port: int) -> tuple[float, str]:
    """Seconds from `make serve` to the answer of the curl that it prints, and the answer's text."""
    started_s = time.monotonic()
    serving = subprocess.Popen(
        ["make", "--silent", "serve", f"ARGS=--port {port}"],
        cwd=clone,
        env=_bare_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        curl = _printed_curl(serving, started_s + _SERVE_BUDGET_S)
        reply = subprocess.run([*curl, "--silent", "--fail-with-body"], check=True, capture_output=True, text=True)
        answered_s = time.monotonic() - started_s
        return answered_s, json.loads(reply.stdout)["choices"][0]["message"]["content"]
    finally:
        os.killpg(serving.pid, signal.SIGTERM)
        serving.wait(timeout=_STOP_BUDGET_S)


def _printed_curl(serving: "subprocess.Popen[str]", deadline_s: float) -> list[str]:
    lines: list[str] = []
    for line in serving.stdout or ():
        lines.append(line)
        if match := re.match(r"\s*(curl http.*)", line):
            return shlex.split(match[1])
        if time.monotonic() > deadline_s:
            break
    sys.exit("make serve printed no curl:\n" + "".join(lines[-30:]))


def _bare_environment() -> dict[str, str]:
    """Without what an active virtual environment or an editable tree would lend the clone."""
    hidden = {"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "NATS_SERVER", "ETCD_ENDPOINTS"}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    own_bin = str(Path(sys.executable).parent)
    environment["PATH"] = os.pathsep.join(entry for entry in environment["PATH"].split(os.pathsep) if entry != own_bin)
    return environment


if __name__ == "__main__":
    sys.exit(main())
