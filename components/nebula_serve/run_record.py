"""Keeps the run-info file of a running graph true while its processes come and go."""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from nebula_serve.console import Console
from nebula_serve.keeper import Keeper
from nebula_serve.planes import Planes
from nebula_serve.process_plan import ProcessSpec
from nebula_serve.resolve import ResolvedGraph
from nebula_serve.run_info import ProcessInfo, RunInfo, own_pid_created_s, write_run_info
from nebula_serve.supervision_events import RunInfoNotWritten


class RunRecord:
    def __init__(
        self,
        path: Path,
        resolved: ResolvedGraph,
        planes: Planes,
        url: str | None,
        working_dir: Path,
        console: Console,
    ) -> None:
        self._path = path
        self._console = console
        common = resolved.common
        self._info = RunInfo(
            graph=resolved.graph.name,
            pid=os.getpid(),
            pid_created_s=own_pid_created_s(),
            working_dir=str(working_dir),
            url=url,
            model_name=common.model_name or "",
            nats_url=planes.nats_url,
            namespaces=tuple(dict.fromkeys(filter(None, (common.namespace, common.pool_namespace)))),
            environment=dict(planes.environment),
        )

    def update(self, keepers: Sequence[Keeper]) -> None:
        processes = tuple(_process_info(keeper.spec, keeper.pid) for keeper in keepers)
        ready = all(keeper.ready.is_set() for keeper in keepers)
        try:
            write_run_info(self._path, msgspec.structs.replace(self._info, ready=ready, processes=processes))
        except OSError as error:
            # A full disk is no reason to stop serving.
            self._console.report(RunInfoNotWritten(str(self._path), error.strerror or str(error)))

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


def _process_info(spec: ProcessSpec, pid: int | None) -> ProcessInfo:
    return ProcessInfo(name=spec.name, service=spec.service, pid=pid, metrics_url=spec.metrics_url)
