"""Which running graph a command talks to when it is not told: the one in the working directory."""

from pathlib import Path

from nebula_cli.errors import CliError
from nebula_serve.run_info import RunInfo, find_running_graphs


def find_deployment(working_dir: Path, graph: str | None = None) -> RunInfo | None:
    """The graph named `graph`, or the only one that runs with this working directory; None when none runs.

    Raises:
        CliError: several run and none is named, or the named one does not run.
    """
    running = {info.graph: info for info in find_running_graphs(working_dir)}
    if graph is not None:
        if graph not in running:
            raise CliError(f"graph {graph!r} does not run with working directory {working_dir}{_listed(running)}")
        return running[graph]
    if len(running) > 1:
        raise CliError(f"several graphs run here{_listed(running)}; choose one with --graph")
    return next(iter(running.values()), None)


def _listed(running: dict[str, RunInfo]) -> str:
    return f" ({', '.join(sorted(running))})" if running else ""
