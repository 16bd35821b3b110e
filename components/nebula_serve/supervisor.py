"""Runs the processes of a graph together: in stages, until it is asked to stop or a start fails."""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from nebula_serve.backoff import RestartPolicy
from nebula_serve.console import Console
from nebula_serve.keeper import Keeper
from nebula_serve.process_plan import ProcessSpec
from nebula_serve.supervision_events import ProcessKilled, StillWaiting, Stopping

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPolicy:
    """The times of all stages add up to less than the 10 s within which everything must be gone."""

    services_s: float = 8.0
    """From SIGTERM to SIGKILL for the last stage, all its processes together."""
    planes_s: float = 0.8
    """The same for each stage below, which stops after it."""
    killed_s: float = 0.4
    """From SIGKILL until a process is given up as unkillable."""


_RESTART_POLICY = RestartPolicy()
_STOP_POLICY = StopPolicy()


class Supervisor:
    """
    Args:
        stages: each stage starts at once, when the one before is ready, and stops after the ones behind it.
        on_ready: called once, when every process serves.
        on_change: called with all keepers whenever the pid or the readiness of a process changed.
        on_death: called in a thread when a process ended without being asked to, before its restart.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[ProcessSpec]],
        working_dir: Path,
        console: Console,
        *,
        restart: RestartPolicy = _RESTART_POLICY,
        stop: StopPolicy = _STOP_POLICY,
        waiting_report_s: float = 15.0,
        on_ready: Callable[[], None] = lambda: None,
        on_change: Callable[[Sequence[Keeper]], None] = lambda _: None,
        on_death: Callable[[], object] = lambda: None,
    ) -> None:
        self._console = console
        self._stop_policy = stop
        self._waiting_report_s = waiting_report_s
        self._on_ready = on_ready
        self._on_change = on_change
        self._stages = [
            [Keeper(spec, working_dir, restart, console, self._report_change, on_death) for spec in stage]
            for stage in stages
        ]
        self._tasks: dict[Keeper, asyncio.Task[None]] = {}
        self._ended = asyncio.Event()
        """Set when a stop was requested or a process was given up."""
        self._stop_requested = False

    @property
    def keepers(self) -> tuple[Keeper, ...]:
        return tuple(keeper for stage in self._stages for keeper in stage)

    async def run(self) -> None:
        """Starts everything and returns once everything has stopped, after SIGINT, SIGTERM, SIGHUP or `request_stop`.

        Raises:
            StartFailedError: a process cannot be started. Everything else has been stopped by then.
        """
        loop = asyncio.get_running_loop()
        for number in _STOP_SIGNALS:
            loop.add_signal_handler(number, self.request_stop, f"got {number.name}")
        try:
            await self._start_stages()
            await self._ended.wait()
        finally:
            await self._stop_stages()
            for number in _STOP_SIGNALS:
                loop.remove_signal_handler(number)
        ended = [task for task in self._tasks.values() if task.done() and not task.cancelled()]
        failures = [failure for task in ended if (failure := task.exception()) is not None]
        if failures:
            raise failures[0]

    def request_stop(self, reason: str) -> None:
        """The first request stops everything in good order; a second one kills at once."""
        if self._stop_requested:
            for keeper in self.keepers:
                keeper.kill()
            return
        self._stop_requested = True
        self._console.report(Stopping(reason))
        self._ended.set()

    def _report_change(self) -> None:
        self._on_change(self.keepers)

    async def _start_stages(self) -> None:
        for stage in self._stages:
            for keeper in stage:
                task = asyncio.create_task(keeper.keep(), name=keeper.spec.name)
                task.add_done_callback(lambda _: self._ended.set())
                self._tasks[keeper] = task
            if not await self._becomes_ready(stage):
                return
        self._on_ready()

    async def _becomes_ready(self, stage: Sequence[Keeper]) -> bool:
        """False when a stop was requested or a process was given up before the whole stage served."""
        ready = asyncio.create_task(self._wait_until_ready(stage))
        ended = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({ready, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            ended.cancel()
        return not self._ended.is_set()

    async def _wait_until_ready(self, stage: Sequence[Keeper]) -> None:
        started_s = time.monotonic()
        while missing := [keeper for keeper in stage if not keeper.ready.is_set()]:
            try:
                await asyncio.wait_for(missing[0].ready.wait(), self._waiting_report_s)
            except TimeoutError:
                names = tuple(keeper.spec.name for keeper in stage if not keeper.ready.is_set())
                self._console.report(StillWaiting(names, time.monotonic() - started_s))

    async def _stop_stages(self) -> None:
        limit_s = self._stop_policy.services_s
        for stage in reversed(self._stages):
            await self._stop_stage([keeper for keeper in stage if keeper in self._tasks], limit_s)
            limit_s = self._stop_policy.planes_s

    async def _stop_stage(self, stage: Sequence[Keeper], limit_s: float) -> None:
        for keeper in stage:
            keeper.stop()
        for keeper in await self._still_there(stage, limit_s):
            self._console.report(ProcessKilled(keeper.spec.name, limit_s))
            keeper.kill()
        await self._still_there(stage, self._stop_policy.killed_s)

    async def _still_there(self, stage: Sequence[Keeper], limit_s: float) -> Sequence[Keeper]:
        tasks = {self._tasks[keeper] for keeper in stage}
        if tasks:
            await asyncio.wait(tasks, timeout=limit_s)
        return [keeper for keeper in stage if not self._tasks[keeper].done()]
