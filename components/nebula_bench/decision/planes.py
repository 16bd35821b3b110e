"""The planes that Dynamo's runtime needs: a NATS server of this benchmark's own, and discovery in a folder."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from nebula_bench.errors import BenchError
from nebula_serve.listening import LOOPBACK, find_free_port
from nebula_serve.nats import find_nats_server
from nebula_serve.readiness import NatsGreetingProbe

_START_S = 10.0


@asynccontextmanager
async def open_planes() -> AsyncIterator[None]:
    """While it is open, this process's environment and that of its children name the planes.

    Raises:
        BenchError: the NATS server does not start.
        ProgramMissingError: there is none to start.
    """
    port = find_free_port()
    with tempfile.TemporaryDirectory(prefix="nebula-bench-") as folder:
        server = await asyncio.create_subprocess_exec(
            *(find_nats_server(), "--addr", LOOPBACK, "--port", str(port)),
            cwd=folder,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(_START_S):
                await NatsGreetingProbe(LOOPBACK, port).wait_until_ready()
            with _environment(_planes(port, folder)):
                yield
        except TimeoutError as error:
            raise BenchError("the benchmark's NATS server did not start") from error
        finally:
            if server.returncode is None:
                server.terminate()
                await server.wait()


def _planes(nats_port: int, discovery_folder: str) -> dict[str, str]:
    return {
        "NATS_SERVER": f"nats://{LOOPBACK}:{nats_port}",
        "DYN_EVENT_PLANE": "nats",
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": discovery_folder,
        "DYN_TCP_RPC_HOST": LOOPBACK,
        # Its reports of workers that come and go would stand in the middle of the table.
        "DYN_LOG": "off",
    }


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
