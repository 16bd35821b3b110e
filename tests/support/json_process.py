"""A Python process that a test talks to in lines of JSON, on Dynamo's planes.

Dynamo takes one runtime a process and reads its environment when that starts, so tests cannot hold it themselves.
"""

import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

Line = dict[str, object]
TIMEOUT_S = 30.0


def plane_environment(nats_url: str, discovery_dir: Path) -> dict[str, str]:
    """NATS for events, TCP for requests, files for discovery; everything on loopback."""
    return {
        "PYTHONPATH": ":".join(sys.path),
        "PATH": "/usr/bin:/bin",
        "NATS_SERVER": nats_url,
        "DYN_EVENT_PLANE": "nats",
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(discovery_dir),
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_SYSTEM_HOST": "127.0.0.1",
        "DYN_LOG": "off",
    }


def write_line(line: Mapping[str, object]) -> None:
    """For the process: tells the test."""
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


class JsonProcess:
    """For the test: lines that are no JSON objects are left out."""

    def __init__(self, script: str | Path, *arguments: str, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            (sys.executable, str(script), *arguments),
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._lines: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._unread: list[Line] = []
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, **line: object) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(msgspec.json.encode(line) + b"\n")
        stdin.flush()

    def wait_for(self, timeout_s: float = TIMEOUT_S, **wanted: object) -> Line:
        """The first line with these values that was not waited for yet.

        Raises:
            TimeoutError: it does not come.
        """
        return self._first(lambda line: wanted.items() <= line.items(), timeout_s, str(wanted))

    def wait_for_key(self, key: str, timeout_s: float = TIMEOUT_S) -> Line:
        """The first line with this key that was not waited for yet.

        Raises:
            TimeoutError: it does not come.
        """
        return self._first(lambda line: key in line, timeout_s, key)

    def _first(self, fits: Callable[[Line], bool], timeout_s: float, what: str) -> Line:
        end_s = time.monotonic() + timeout_s
        seen = 0
        while True:
            for index in range(seen, len(self._unread)):
                if fits(self._unread[index]):
                    return self._unread.pop(index)
            seen = len(self._unread)
            try:
                self._unread.append(self._lines.get(timeout=max(0.0, end_s - time.monotonic())))
            except queue.Empty:
                raise TimeoutError(f"no line with {what}, but {self._unread}") from None

    def kill(self) -> None:
        """As when the machine takes it away."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def _read(self) -> None:
        stdout = self._process.stdout
        assert stdout is not None
        try:
            for text in stdout:
                if text.startswith(b"{"):
                    self._lines.put(msgspec.json.decode(text, type=Line))
        except ValueError:
            # Closed by the test.
            return
