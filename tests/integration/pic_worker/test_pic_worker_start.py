"""A worker process that cannot start says why in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from nebula_serve.sim_model.model_folder import packaged_folder
from pic_worker.settings import SimSettings, WorkerSettings

pytestmark = pytest.mark.integration

COLOUR = "\x1b["
NOBODY_LISTENS = "nats://127.0.0.1:1"
READY = WorkerSettings(model_path=str(packaged_folder()))


def start(settings: str, folder: Path, nats_url: str) -> tuple[int, list[str]]:
    """Exit code and errors of a process that ends by itself; the log lines of Dynamo's runtime begin with a colour."""
    file = folder / "settings.json"
    file.write_text(settings)
    done = subprocess.run(
        [sys.executable, "-m", "pic_worker", "--config-file", str(file)],
        env={
            "PYTHONPATH": ":".join(sys.path),
            "NATS_SERVER": nats_url,
            "DYN_EVENT_PLANE": "nats",
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(folder / "discovery"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, [line for line in done.stderr.splitlines() if not line.startswith(COLOUR)]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (READY.model_copy(update={"model_path": "/nowhere"}), "there is no tokenizer at /nowhere/tokenizer.json"),
        (READY.model_copy(update={"sim": SimSettings(system="abacus")}), "no prefill-time table for"),
    ],
    ids=["no model", "no table"],
)
def test_what_a_worker_lacks_is_said_in_one_line(
    settings: WorkerSettings, reason: str, tmp_path: Path, nats_url: str
) -> None:
    exit_code, lines = start(settings.model_dump_json(), tmp_path, nats_url)
    assert exit_code == 1
    (line,) = lines
    assert line.startswith(f"pic_worker: {reason}")


def test_without_nats_the_line_says_so(tmp_path: Path) -> None:
    exit_code, lines = start(READY.model_dump_json(), tmp_path, NOBODY_LISTENS)
    assert exit_code == 1
    (line,) = lines
    assert line.startswith("pic_worker: ")
    assert "NATS" in line


def test_a_wrong_setting_is_named_without_a_traceback(tmp_path: Path) -> None:
    exit_code, lines = start('{"colour": "red"}', tmp_path, NOBODY_LISTENS)
    assert exit_code == 1
    assert lines[0].startswith("pic_worker: ")
    assert "colour" in lines
    assert not any("Traceback" in line for line in lines)
