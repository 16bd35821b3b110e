"""A real nats-server for one run of tests."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from nebula_serve.nats import find_nats_server

_START_S = 10.0
_POLL_S = 0.01


class _Ports(msgspec.Struct):
    """What the server writes down once it listens."""

    nats: tuple[str, ...]


class NatsServerProcess:
    """Listens on loopback, on a free port of its own choice unless one is given."""

    def __init__(self, folder: Path, port: int = -1) -> None:
        command = (find_nats_server(), "--addr", "127.0.0.1", "--port", str(port), "--ports_file_dir", str(folder))
        self._process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = self._await_url(folder)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _await_url(self, folder: Path) -> str:
        end_s = time.monotonic() + _START_S
        while time.monotonic() < end_s and self._process.poll() is None:
            for file in folder.glob(f"*_{self._process.pid}.ports"):
                if data := file.read_bytes():
                    return msgspec.json.decode(data, type=_Ports).nats[0]
            time.sleep(_POLL_S)
        self.stop()
        raise RuntimeError("nats-server did not start")


@pytest.fixture(scope="session")
def nats_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a server that all tests of the session share; each uses a namespace of its own."""
    server = NatsServerProcess(tmp_path_factory.mktemp("nats"))
    yield server.url
    server.stop()
