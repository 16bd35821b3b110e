"""`dynamo serve` with Dynamo's own frontend and runtime, and a service that answers with the first prompt tokens."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from nebula_serve.run_info import RunInfo, read_run_info, run_info_path

pytestmark = pytest.mark.integration

GRAPHS = """
from pydantic import BaseModel, ConfigDict
from graphs.services import FRONTEND
from nebula_serve.graph import Graph, ServiceSpec
from nebula_serve.nats import NATS
from nebula_serve.process_plan import python_module

class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    model_path: str
    model_name: str
    metrics_port: int = 0

echo = Graph(
    name="echo",
    description="",
    planes=(NATS,),
    services=(
        FRONTEND,
        ServiceSpec(
            name="Echo",
            description="",
            settings_model=Settings,
            command=python_module("own_echo"),
            inherits={"model_path": "model_path", "model_name": "model_name"},
            metrics_port_key="metrics_port",
        ),
    ),
)
"""
ECHO = """
import asyncio, json, os, pathlib, signal, sys
settings = json.loads(pathlib.Path(sys.argv[2]).read_text())
from dynamo.llm import ModelInput, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime
from dynamo.runtime.logging import configure_dynamo_logging

async def generate(request, context):
    yield {"token_ids": request["token_ids"][:4]}
    yield {"token_ids": [], "finish_reason": "stop"}

async def main():
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, os.environ["DYN_DISCOVERY_BACKEND"], "tcp", event_plane="nats")
    loop.add_signal_handler(signal.SIGTERM, runtime.shutdown)
    endpoint = runtime.endpoint("nebula.echo.generate")
    kinds = ModelType.Chat | ModelType.Completions
    await register_model(
        ModelInput.Tokens, kinds, endpoint, settings["model_path"], settings["model_name"],
        worker_type=WorkerType.Aggregated, kv_cache_block_size=16,
    )
    serving = asyncio.ensure_future(endpoint.serve_endpoint(generate))
    pathlib.Path(os.environ["NEBULA_READY_FILE"]).touch()
    await serving

configure_dynamo_logging()
asyncio.run(main())
"""


def eventually(condition: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.05)


class Served:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "own_graphs.py").write_text(GRAPHS)
        (folder / "own_echo.py").write_text(ECHO)
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("DYN_", "NATS_", "ETCD_"))}
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nebula_serve", "serve", "own_graphs:echo", "--port", "0"],
                cwd=folder,
                env=environ,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def info(self) -> RunInfo | None:
        return read_run_info(run_info_path(self.folder, "echo"))

    def ready_info(self) -> RunInfo:
        eventually(lambda: self.process.poll() is not None or ((info := self.info()) is not None and info.ready))
        info = self.info()
        assert info is not None, self.log
        return info


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("echo"))
    yield served
    if served.process.poll() is None:
        served.process.terminate()
        served.process.wait(10)


def ask(info: RunInfo) -> httpx.Response:
    body = {"model": info.model_name, "messages": [{"role": "user", "content": "hello"}]}
    return httpx.post(f"{info.url}/v1/chat/completions", json=body, timeout=10)


def pid_of(info: RunInfo, name: str) -> int | None:
    return next(process.pid for process in info.processes if process.name == name)


def test_when_it_is_ready_the_frontend_answers(served: Served) -> None:
    answer = ask(served.ready_info())
    assert answer.status_code == 200
    # The service gives back the first four of the prompt's tokens.
    assert answer.json()["usage"]["completion_tokens"] == 4


def test_nothing_listens_beyond_loopback(served: Served) -> None:
    pids = {process.pid for process in served.ready_info().processes}
    listening = [
        connection.laddr.ip
        for pid in pids
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 3
    assert set(listening) <= {"127.0.0.1", "::1"}


def test_each_process_with_metrics_serves_them_where_the_run_info_says(served: Served) -> None:
    (url,) = (process.metrics_url for process in served.ready_info().processes if process.metrics_url)
    assert "dynamo_component" in httpx.get(url, timeout=10).text


def test_requests_leave_no_line_each_in_the_log(served: Served) -> None:
    info = served.ready_info()
    lines_before = served.log.count("\n")
    for _ in range(20):
        ask(info)
    assert served.log.count("\n") < lines_before + 20


def test_a_killed_frontend_comes_back_and_answers(served: Served) -> None:
    before = served.ready_info()
    killed = pid_of(before, "Frontend")
    assert killed is not None
    os.kill(killed, signal.SIGKILL)

    def is_replaced() -> bool:
        info = served.info()
        return info is not None and info.ready and pid_of(info, "Frontend") not in (None, killed)

    eventually(is_replaced)
    assert ask(before).status_code == 200


def test_a_stop_takes_less_than_ten_seconds_and_leaves_no_process(served: Served) -> None:
    pids = [process.pid for process in served.ready_info().processes if process.pid is not None]
    served.process.terminate()
    assert served.process.wait(10) == 0
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
