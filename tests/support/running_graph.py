"""A whole graph as users start it, with `dynamo serve` as a process of its own, and clients' ways to ask it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from nebula_serve.run_info import ProcessInfo, RunInfo, read_run_info, run_info_path

ROOT = Path(__file__).parents[2]
EXTRA_FIELDS = ["worker_id", "timing", "engine_data"]

Json = dict[str, Any]


def eventually(condition: Callable[[], bool], what: str, limit_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not in time: {what}"
        time.sleep(0.05)


class RunningGraph:
    """Answers are awaited one after another; every request asks for all of Nebula's and Dynamo's metadata."""

    def __init__(self, folder: Path, name: str, *options: str, request_limit_s: float = 60.0) -> None:
        self.folder = folder
        self._request_limit_s = request_limit_s
        self.name = name
        foreign = ("DYN_", "NATS_", "ETCD_", "NEBULA_")
        with (folder / "log").open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "nebula_serve", "serve", f"graphs:{name}"),
                    *("--working-dir", str(folder), "--port", "0", *options),
                ],
                cwd=ROOT,
                env={key: value for key, value in os.environ.items() if not key.startswith(foreign)},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_ready(self, limit_s: float = 60.0) -> None:
        def has_outcome() -> bool:
            info = read_run_info(run_info_path(self.folder, self.name))
            return self.process.poll() is not None or (info is not None and info.ready)

        deadline_s = time.monotonic() + limit_s
        while not has_outcome():
            assert time.monotonic() < deadline_s, (self.folder / "log").read_text()
            time.sleep(0.05)
        assert self.process.poll() is None, (self.folder / "log").read_text()

    @property
    def info(self) -> RunInfo:
        info = read_run_info(run_info_path(self.folder, self.name))
        assert info is not None, (self.folder / "log").read_text()
        return info

    def processes(self, service: str) -> list[ProcessInfo]:
        return [process for process in self.info.processes if process.service == service]

    def metrics_of(self, process: ProcessInfo) -> str:
        assert process.metrics_url is not None
        return httpx.get(process.metrics_url, timeout=10).text

    def post(self, path: str, body: Json, headers: dict[str, str] | None = None) -> httpx.Response:
        return httpx.post(
            f"{self.info.url}{path}",
            json={"model": self.info.model_name, **body},
            headers=headers,
            timeout=self._request_limit_s,
        )

    def chat(self, text: str, **options: object) -> Json:
        return self.ask([{"role": "user", "content": text}], **options)

    def ask(self, messages: list[dict[str, str]], **options: object) -> Json:
        response = self.post("/v1/chat/completions", {"messages": messages, **_with_metadata(options)})
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    def complete(self, prompt: list[int], **options: object) -> Json:
        response = self.post("/v1/completions", {"prompt": prompt, **_with_metadata(options)})
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def all_pids(self) -> list[int]:
        """Of `dynamo serve` and everything below it."""
        supervisor = psutil.Process(self.process.pid)
        return [supervisor.pid, *(child.pid for child in supervisor.children(recursive=True))]


def receipt_of(answer: Json) -> Json:
    receipt: Json = answer["nvext"]["engine_data"]["nebula_receipt"]
    return receipt


def _with_metadata(options: dict[str, object]) -> Json:
    annotations = options.pop("annotations", [])
    nvext = {"extra_fields": EXTRA_FIELDS, "annotations": annotations}
    return {"max_tokens": 8, "nvext": nvext, **options}
