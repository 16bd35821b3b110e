"""Keeps one process running: start, wait until it serves, restart when it ends."""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nebula_serve.backoff import Backoff, RestartPolicy
from nebula_serve.child import Child
from nebula_serve.console import Console
from nebula_serve.errors import StartFailedError
from nebula_serve.process_plan import ProcessSpec
from nebula_serve.supervision_events import (
    ProcessCrashed,
    ProcessReady,
    ProcessStarted,
    ProcessStopped,
    describe_exit,
)


@dataclass(frozen=True, slots=True)
class _Life:
    """From one start of the process to its end."""

    served_s: float
    outcome: str
    last_lines: tuple[str, ...]


class Keeper:
    """`ready` is set while the process serves. `on_change` is called when its pid or its readiness changed, `on_death`,
    in a thread, when it ended without being asked to."""

    def __init__(
        self,
        spec: ProcessSpec,
        working_dir: Path,
        policy: RestartPolicy,
        console: Console,
        on_change: Callable[[], None] = lambda: None,
        on_death: Callable[[], object] = lambda: None,
    ) -> None:
        self.spec = spec
        self.ready = asyncio.Event()
        self._working_dir = working_dir
        self._policy = policy
        self._console = console
        self._on_change = on_change
        self._on_death = on_death
        self._backoff = Backoff(policy)
        self._stopping = asyncio.Event()
        self._child: Child | None = None
        self._was_ready = False
        self._failed_starts = 0

    @property
    def pid(self) -> int | None:
        """None before the first start and between a crash and the restart."""
        return self._child.pid if self._child else None

    async def keep(self) -> None:
        """Runs the process until `stop`.

        Raises:
            StartFailedError: it crashed too often before it was ever ready, or cannot be executed.
        """
        while not self._stopping.is_set():
            life = await self._run_once()
            if self._stopping.is_set():
                self._console.report(ProcessStopped(self.spec.name, life.outcome))
                return
            await asyncio.to_thread(self._on_death)
            if not self._was_ready:
                self._failed_starts += 1
                if self._failed_starts >= self._policy.max_failed_starts:
                    raise StartFailedError(self.spec.name, self._failed_starts, life.outcome, life.last_lines)
            delay_s = self._backoff.record_crash(life.served_s)
            self._console.report(ProcessCrashed(self.spec.name, life.outcome, delay_s))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)

    def stop(self) -> None:
        """Asks the process to end and lets `keep` return when it has."""
        self._stopping.set()
        if self._child:
            self._child.signal_group(signal.SIGTERM)

    def kill(self) -> None:
        self._stopping.set()
        if self._child:
            self._child.signal_group(signal.SIGKILL)

    async def _run_once(self) -> _Life:
        self.spec.probe.reset()
        started_s = time.monotonic()
        try:
            child = await Child.start(self.spec, self._working_dir, self._take_line)
        except OSError as error:
            outcome = f"cannot be started: {error.strerror or error}"
            raise StartFailedError(self.spec.name, self._failed_starts + 1, outcome, ()) from error
        self._child = child
        if self._stopping.is_set():
            # `stop` came while the process was being made and found nothing to signal.
            child.signal_group(signal.SIGTERM)
        self._console.report(ProcessStarted(self.spec.name, child.pid))
        self._on_change()
        ended = asyncio.create_task(child.wait())
        ready_s = await self._wait_until_ready(ended, started_s)
        status = await ended
        self._child = None
        self.ready.clear()
        self._on_change()
        served_s = 0.0 if ready_s is None else time.monotonic() - ready_s
        return _Life(served_s, describe_exit(status), child.last_lines)

    async def _wait_until_ready(self, ended: asyncio.Task[int], started_s: float) -> float | None:
        """The clock when the process began to serve, or None when it ended before."""
        probe = asyncio.create_task(self.spec.probe.wait_until_ready())
        await asyncio.wait({ended, probe}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done() or self._stopping.is_set():
            probe.cancel()
            return None
        probe.result()
        ready_s = time.monotonic()
        self._was_ready = True
        self.ready.set()
        self._console.report(ProcessReady(self.spec.name, ready_s - started_s))
        self._on_change()
        return ready_s

    def _take_line(self, line: str) -> None:
        self._console.process_line(self.spec.name, self.spec.service, line)
