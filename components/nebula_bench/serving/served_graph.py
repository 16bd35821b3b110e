"""A graph that the benchmark starts with `dynamo serve`, looks into, and stops again."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from nebula_bench.errors import BenchError
from nebula_bench.serving.process_metrics import ProcessMetrics, scrape
from nebula_protocol.ids import WorkerId
from nebula_serve.death_signal import die_with_parent
from nebula_serve.run_info import ProcessInfo, RunInfo, read_run_info, run_info_path

PREFILL_WORKER = "PrefillWorker"
ROUTER = "Router"

_START_S = 90.0
_RESTART_S = 60.0
_STOP_S = 60.0
_POLL_S = 0.1
_METRICS_TIMEOUT_S = 2.0
_LAST_LINES = 8
_FOREIGN_VARIABLES = ("DYN_", "NATS_", "ETCD_", "NEBULA_")
"""What would change the planes or settings of a graph that must be the benchmark's own."""


class GraphError(BenchError):
    """A graph did not start, or ended while it was measured."""


@dataclass(frozen=True, slots=True)
class GraphSpec:
    name: str
    """In `graphs`: `nebula` or `dynamo_kv`."""
    config: Path
    overrides: tuple[str, ...] = ()
    """Settings of the form `--Service.key=value`."""


class ServedGraph:
    """Use `open_graph`."""

    def __init__(
        self,
        spec: GraphSpec,
        working_dir: Path,
        log: Path,
        process: asyncio.subprocess.Process,
        http: httpx.AsyncClient,
    ) -> None:
        self.name = spec.name
        self._run_info = run_info_path(working_dir, spec.name)
        self._log = log
        self._process = process
        self._http = http

    @property
    def info(self) -> RunInfo:
        """Where everything is at this moment.

        Raises:
            GraphError: the graph has ended.
        """
        info = read_run_info(self._run_info)
        if info is None:
            raise GraphError(f"graphs:{self.name} has ended{self._last_lines()}")
        return info

    @property
    def url(self) -> str:
        """Of the frontend."""
        return self.info.url or ""

    def processes(self, service: str) -> tuple[ProcessInfo, ...]:
        return tuple(process for process in self.info.processes if process.service == service)

    async def wait_until_ready(self, limit_s: float = _START_S) -> None:
        """Returns once every process serves.

        Raises:
            GraphError: that takes longer than `limit_s`, or the graph has ended.
        """
        try:
            async with asyncio.timeout(limit_s):
                while not self._is_ready():
                    if self._process.returncode is not None:
                        raise GraphError(f"graphs:{self.name} did not start{self._last_lines()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise GraphError(f"graphs:{self.name} is not ready after {limit_s:g} s{self._last_lines()}") from error

    async def kill(self, process: ProcessInfo) -> None:
        """SIGKILL; `dynamo serve` starts it anew.

        Raises:
            GraphError: it does not run at this moment.
        """
        if process.pid is None:
            raise GraphError(f"{process.name} does not run")
        os.kill(process.pid, signal.SIGKILL)
        while self._find(process.name).pid == process.pid:
            await asyncio.sleep(_POLL_S)

    async def wait_until_restarted(self) -> None:
        """As `wait_until_ready`, after a kill: the router knows all prefill workers again, too.

        Raises:
            GraphError: that takes too long.
        """
        await self.wait_until_ready(_RESTART_S)
        routers = self.processes(ROUTER)
        wanted = len(self.processes(PREFILL_WORKER))
        try:
            async with asyncio.timeout(_RESTART_S):
                while [metrics.num_workers() for metrics in await self._scrapes(routers)] != [wanted] * len(routers):
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise GraphError(f"the router does not know all {wanted} prefill workers again") from error

    async def metrics(self, service: str) -> tuple[ProcessMetrics, ...]:
        """Of the service's processes that answer at this moment."""
        return await self._scrapes(self.processes(service))

    async def metrics_of(self, process_name: str) -> ProcessMetrics | None:
        """None when the process does not answer at this moment."""
        return await self._scrape(self._find(process_name))

    async def prefill_workers(self) -> Mapping[WorkerId, ProcessInfo]:
        """The prefill workers that serve at this moment."""
        processes = self.processes(PREFILL_WORKER)
        scrapes = await asyncio.gather(*(self._scrape(process) for process in processes))
        ids = [None if metrics is None else metrics.worker_id() for metrics in scrapes]
        return {worker_id: process for worker_id, process in zip(ids, processes, strict=True) if worker_id is not None}

    async def find_at_work(self, num_requests: int) -> tuple[WorkerId, ProcessInfo] | None:
        """A prefill worker with so many requests in flight; None when no worker has them."""
        for process in self.processes(PREFILL_WORKER):
            metrics = await self._scrape(process)
            worker_id = None if metrics is None else metrics.worker_id()
            if metrics is not None and worker_id is not None and metrics.num_in_flight() >= num_requests:
                return worker_id, process
        return None

    async def stop(self) -> None:
        """SIGTERM to `dynamo serve`, which takes everything with it.

        Raises:
            GraphError: it does not end in time; then it is killed.
        """
        if self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._process.wait()
        except TimeoutError as error:
            self._process.kill()
            raise GraphError(f"graphs:{self.name} did not stop within {_STOP_S:g} s") from error

    def _is_ready(self) -> bool:
        info = read_run_info(self._run_info)
        return info is not None and info.ready

    def _find(self, name: str) -> ProcessInfo:
        return next(process for process in self.info.processes if process.name == name)

    async def _scrapes(self, processes: tuple[ProcessInfo, ...]) -> tuple[ProcessMetrics, ...]:
        scrapes = await asyncio.gather(*(self._scrape(process) for process in processes))
        return tuple(metrics for metrics in scrapes if metrics is not None)

    async def _scrape(self, process: ProcessInfo) -> ProcessMetrics | None:
        return None if process.metrics_url is None else await scrape(self._http, process.metrics_url)

    def _last_lines(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-_LAST_LINES:] if self._log.exists() else []
        return "".join(f"\n  {line}" for line in lines)


@asynccontextmanager
async def open_graph(
    spec: GraphSpec, logs: Path | None = None, start_s: float = _START_S
) -> AsyncIterator[ServedGraph]:
    """The graph, serving, in a working directory that is gone afterwards; its log stays in `logs`.

    Raises:
        GraphError: it does not start, or does not stop.
        BenchError: there is no such file of settings, or the log cannot be written.
    """
    if not spec.config.is_file():
        raise BenchError(f"no settings of graphs:{spec.name} at {spec.config}; run this in the project's folder")
    with tempfile.TemporaryDirectory(prefix="nebula-bench-") as folder:
        log = _make_log(logs or Path(folder), spec.name)
        with log.open("w") as log_file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "nebula_serve", "serve", f"graphs:{spec.name}"),
                *("--config-file", str(spec.config.absolute()), "--working-dir", folder, "--port", "0"),
                *spec.overrides,
                stdout=log_file,
                stderr=asyncio.subprocess.STDOUT,
                env=_own_environment(os.environ),
                # Ctrl-C reaches the benchmark alone, which then stops the graph in good order.
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        async with httpx.AsyncClient(timeout=_METRICS_TIMEOUT_S, trust_env=False) as http:
            graph = ServedGraph(spec, Path(folder), log, process, http)
            try:
                await graph.wait_until_ready(start_s)
                yield graph
            finally:
                await graph.stop()


def _make_log(folder: Path, graph_name: str) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"logs cannot be written to {folder}: {error.strerror}") from error
    return folder / f"{graph_name}.log"


def _own_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if not name.startswith(_FOREIGN_VARIABLES)}
