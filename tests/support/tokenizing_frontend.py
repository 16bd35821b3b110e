"""Dynamo's frontend with a worker that answers one token and tells which request it got.

As a process it is the worker: `python tokenizing_frontend.py MODEL_PATH`.
"""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from support.json_process import JsonProcess, plane_environment, write_line

Json = dict[str, Any]
MODEL = "tokenized"
_NAMESPACE = "tokenized"


class TokenizingFrontend:
    def __init__(self, model_path: Path, nats_url: str, folder: Path) -> None:
        # Dynamo keeps copies of the model's files in the home folder.
        environment = plane_environment(nats_url, folder / "discovery") | {"HOME": str(folder)}
        self._worker = JsonProcess(__file__, str(model_path), environment=environment)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._url = f"http://127.0.0.1:{free.getsockname()[1]}"
        flags = ("--http-host", "127.0.0.1", "--http-port", self._url.rpartition(":")[2], "--namespace", _NAMESPACE)
        self._frontend = subprocess.Popen(
            (sys.executable, "-m", "dynamo.frontend", *flags),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait_until_ready(self, limit_s: float = 30.0) -> None:
        end_s = time.monotonic() + limit_s
        while not self._has_model():
            assert time.monotonic() < end_s, "the frontend does not serve the model"
            time.sleep(0.1)

    def _has_model(self) -> bool:
        try:
            return MODEL in httpx.get(f"{self._url}/v1/models", timeout=5).text
        except httpx.TransportError:
            return False

    def tokenized(self, path: str, body: Json, headers: Mapping[str, str] | None = None) -> Json:
        """What the worker gets of a request."""
        response = httpx.post(f"{self._url}{path}", json={"model": MODEL, **body}, headers=headers, timeout=30)
        return self._arrived(response)

    def tokenized_if_passed_on(self, path: str, body: Json, headers: Mapping[str, str] | None = None) -> Json | None:
        """The same, or None where the frontend refuses by itself: 1.6 does that with workers that it does not know."""
        response = httpx.post(f"{self._url}{path}", json={"model": MODEL, **body}, headers=headers, timeout=30)
        if response.status_code == 400:
            return None
        return self._arrived(response)

    def _arrived(self, response: httpx.Response) -> Json:
        assert response.status_code == 200, response.text
        request: Any = self._worker.wait_for_key("request")["request"]
        assert isinstance(request, dict)
        return request

    def close(self) -> None:
        self._frontend.kill()
        self._frontend.wait()
        self._worker.close()


async def _work(model_path: str) -> None:
    # Here, for in the test's own process no runtime starts.
    from dynamo.llm import ModelInput, ModelType, WorkerType, register_model
    from dynamo.runtime import Context, DistributedRuntime

    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    endpoint = runtime.endpoint(f"{_NAMESPACE}.worker.generate")
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat | ModelType.Completions,
        endpoint,
        model_path,
        MODEL,
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=16,
    )

    async def generate(request: Json, context: Context) -> AsyncIterator[Json]:
        write_line({"request": request})
        yield {"token_ids": [100], "index": 0, "finish_reason": "stop"}

    await endpoint.serve_endpoint(generate)


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1]))
