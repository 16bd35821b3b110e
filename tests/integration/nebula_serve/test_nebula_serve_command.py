"""`dynamo serve` as a real command over a small graph of the user's own, with a real NATS server."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from nebula_serve.run_info import RunInfo, read_run_info, run_info_path

pytestmark = pytest.mark.integration

GRAPHS = """
from pydantic import BaseModel, ConfigDict
from nebula_serve.graph import Graph, Replicas, ServiceSpec
from nebula_serve.nats import NATS
from nebula_serve.process_plan import python_module

class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    fails: bool = False
    metrics_port: int = 0

tiny = Graph(
    name="tiny",
    description="",
    planes=(NATS,),
    services=(
        ServiceSpec(
            name="Worker",
            description="",
            settings_model=Settings,
            command=python_module("own_worker"),
            replicas=Replicas(default=2),
            metrics_port_key="metrics_port",
        ),
    ),
)
"""
WORKER = """
import json, os, pathlib, sys, time
settings = json.loads(pathlib.Path(sys.argv[2]).read_text())
print(os.environ["NEBULA_PROCESS_NAME"], os.environ["NATS_SERVER"], settings["metrics_port"])
if settings["fails"]:
    sys.exit("no luck")
pathlib.Path(os.environ["NEBULA_READY_FILE"]).touch()
time.sleep(120)
"""


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def eventually(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.02)


class Served:
    """`dynamo serve own_graphs:tiny` in a folder of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.log_path = folder / f"log-{time.monotonic_ns()}"
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("DYN_", "NATS_", "ETCD_"))}
        with self.log_path.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nebula_serve", "serve", "own_graphs:tiny", *arguments],
                cwd=folder,
                env=environ,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def info(self) -> RunInfo | None:
        return read_run_info(run_info_path(self.folder, "tiny"))

    def wait_until_ready(self) -> RunInfo:
        eventually(lambda: "Ready:" in self.log or self.process.poll() is not None)
        info = self.info()
        assert info is not None, self.log
        assert info.ready
        return info

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own_graphs.py").write_text(GRAPHS)
    (tmp_path / "own_worker.py").write_text(WORKER)
    return tmp_path


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    served = Served(folder)
    yield served
    if served.process.poll() is None:
        served.stop()


def worker_pids(info: RunInfo) -> list[int]:
    return [process.pid for process in info.processes if process.pid is not None]


def test_the_run_info_tells_where_the_graph_is_while_it_runs(served: Served) -> None:
    info = served.wait_until_ready()
    assert [process.name for process in info.processes] == ["Nats", "Worker-0", "Worker-1"]
    assert info.environment["NATS_SERVER"] == info.nats_url
    assert info.pid == served.process.pid
    assert f"Worker-1 | Worker-1 {info.nats_url}" in served.log
    assert all(is_alive(pid) for pid in worker_pids(info))
    assert (served.folder / "run" / "tiny" / "discovery").is_dir()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_all_processes_within_ten_seconds_and_leaves_no_trace(served: Served, number: int) -> None:
    pids = worker_pids(served.wait_until_ready())
    served.process.send_signal(number)
    assert served.process.wait(10) == 0
    assert not [pid for pid in pids if is_alive(pid)]
    assert [path.name for path in (served.folder / "run").iterdir()] == ["tiny.lock"]


def test_a_killed_supervisor_leaves_no_orphans_and_the_graph_can_start_again(served: Served) -> None:
    pids = worker_pids(served.wait_until_ready())
    served.process.kill()
    served.process.wait()
    eventually(lambda: not any(is_alive(pid) for pid in pids), limit_s=5)
    assert served.info() is None
    again = Served(served.folder)
    again.wait_until_ready()
    assert again.stop() == 0


def test_the_run_info_follows_a_restart(served: Served) -> None:
    before = served.wait_until_ready()
    killed = before.processes[1].pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)

    def is_replaced() -> bool:
        info = served.info()
        return info is not None and info.ready and info.processes[1].pid not in (None, killed)

    eventually(is_replaced)
    assert "Worker-0 was ended by SIGKILL; restart in 0.5 s" in served.log


def test_a_process_that_cannot_start_ends_everything_with_its_last_words_and_exit_code_1(folder: Path) -> None:
    served = Served(folder, "--Worker.fails=true")
    assert served.process.wait(20) == 1
    assert "exited with code 1; it failed 3 times before it was ready" in served.log
    assert served.log.rstrip().endswith("\n  no luck")
    assert "Traceback" not in served.log


def test_a_second_run_in_the_same_folder_is_refused(served: Served) -> None:
    info = served.wait_until_ready()
    second = Served(served.folder)
    assert second.process.wait(10) == 2
    assert f"already running here (pid {info.pid}" in second.log


def test_one_more_service_joins_the_running_graph(served: Served) -> None:
    info = served.wait_until_ready()
    more = Served(served.folder, "--service-name", "Worker", "--Worker.workers=1")
    eventually(lambda: "Ready:" in more.log)
    assert f"Worker-0 {info.nats_url}" in more.log
    assert "Nats" not in more.log
    assert more.stop() == 0
    assert served.info() == info


def test_a_json_log_is_one_object_a_line(folder: Path) -> None:
    served = Served(folder, "--Common.log_format=json")
    eventually(lambda: (info := served.info()) is not None and info.ready)
    assert served.stop() == 0
    records = [json.loads(line) for line in served.log.splitlines()]
    assert {"Nats", "Worker-0", "Worker-1", "serve"} == {record["process"] for record in records}
