"""One operating system process: started in a group of its own, its output read line by line."""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections import deque
from collections.abc import Callable
from pathlib import Path

from nebula_serve.death_signal import die_with_parent
from nebula_serve.process_plan import ProcessSpec

LineSink = Callable[[str], None]
"""Takes one line of output without its end."""

KEPT_LINES = 20
_MAX_LINE_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
# A grandchild that left the group can keep the pipe open for ever.
_OUTPUT_GRACE_S = 0.5


class Child:
    def __init__(
        self, process: Process, output: asyncio.StreamReader, pipe: asyncio.ReadTransport, on_line: LineSink
    ) -> None:
        self._process = process
        self._pipe = pipe
        self._on_line = on_line
        self._last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._reader = asyncio.create_task(self._read_lines(output))

    @classmethod
    async def start(cls, spec: ProcessSpec, working_dir: Path, on_line: LineSink) -> "Child":
        """
        Raises:
            OSError: the program cannot be executed.
        """
        # A pipe of our own: asyncio's waits for its own pipes to close before it tells that the process has ended,
        # and a grandchild may hold them open.
        read_end, write_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *spec.argv,
                stdin=DEVNULL,
                stdout=write_end,
                stderr=STDOUT,
                cwd=working_dir,
                env={**os.environ, **spec.environment},
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        output = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), os.fdopen(read_end, "rb", buffering=0)
        )
        return cls(process, output, pipe, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_lines(self) -> tuple[str, ...]:
        return tuple(self._last_lines)

    async def wait(self) -> int:
        """The exit status, negative for a signal, after the last line of output. Nothing of its group is left then."""
        status = await self._process.wait()
        self.signal_group(signal.SIGKILL)
        await asyncio.wait({self._reader}, timeout=_OUTPUT_GRACE_S)
        self._reader.cancel()
        self._pipe.close()
        return status

    def signal_group(self, number: signal.Signals) -> None:
        """Signals the process and all that it started; does nothing once they are gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _read_lines(self, output: asyncio.StreamReader) -> None:
        pending = b""
        while chunk := await output.read(_READ_BYTES):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                self._take(line)
            if len(pending) > _MAX_LINE_BYTES:
                self._take(pending)
                pending = b""
        if pending:
            self._take(pending)

    def _take(self, line: bytes) -> None:
        text = line.decode("utf-8", errors="replace").rstrip("\r")
        self._last_lines.append(text)
        self._on_line(text)
