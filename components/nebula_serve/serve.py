"""`dynamo serve`: from the options to running processes."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from nebula_serve.assignments import (
    Assignment,
    from_command_line,
    from_config_file,
    from_environment,
    from_graph,
)
from nebula_serve.console import Console
from nebula_serve.discovery import remove_dead
from nebula_serve.engine_choice import EngineChoice, choose_engine
from nebula_serve.errors import SettingsError, UnknownServiceError, WorkingDirectoryError
from nebula_serve.gpu_shares import GpuShares
from nebula_serve.graph import Graph, ReadyKind
from nebula_serve.graph_reference import load_graph
from nebula_serve.machine import Machine
from nebula_serve.model_folder import make_model, with_model
from nebula_serve.nats import NatsSettings
from nebula_serve.planes import Planes, join_planes, needs_embedded_nats, open_planes
from nebula_serve.presentation import dry_run_yaml, ready_text, settings_help
from nebula_serve.process_plan import ProcessSpec, frontend_url, plan_processes, with_chosen_ports
from nebula_serve.resolve import ResolvedGraph, resolve_common, resolve_services
from nebula_serve.run_directory import (
    RunDirectory,
    graph_run_directory,
    locked,
    opened,
    service_run_directory,
    write_secret,
)
from nebula_serve.run_info import read_run_info, run_info_path
from nebula_serve.run_record import RunRecord
from nebula_serve.shared_settings import CommonSettings
from nebula_serve.supervision_events import EngineChosen, ModelBeingMade
from nebula_serve.supervisor import Supervisor


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    graph: str
    working_dir: Path
    config_files: tuple[Path, ...] = ()
    overrides: tuple[str, ...] = ()
    host: str | None = None
    port: int | None = None
    service_name: str | None = None
    dry_run: bool = False
    help_settings: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything about a start that is known before the first process runs."""

    resolved: ResolvedGraph
    planes: Planes
    directory: RunDirectory
    stages: tuple[tuple[ProcessSpec, ...], ...]
    url: str | None

    @property
    def processes(self) -> tuple[ProcessSpec, ...]:
        return tuple(process for stage in self.stages for process in stage)


def serve(options: ServeOptions, environ: Mapping[str, str], out: TextIO) -> None:
    """Runs the graph until it is stopped; for a dry run or the settings' help, prints and returns.

    Raises:
        ServeError: it cannot start, for a reason that one line explains.
    """
    working_dir = options.working_dir.absolute()
    if not working_dir.is_dir():
        raise WorkingDirectoryError(str(options.working_dir), "no such folder")
    graph = load_graph(options.graph, (working_dir,))
    if options.help_settings:
        print(settings_help(graph), file=out)
        return
    if options.service_name is not None:
        _check_service(graph, options.service_name)
    machine = Machine.here()
    resolved, choice = resolve_graph(graph, options, environ, working_dir, machine)
    if options.dry_run:
        launch = plan_launch(resolved, options.service_name, working_dir, environ, machine)
        print(dry_run_yaml(resolved, launch.processes), file=out, end="")
        return
    with ExitStack() as held:
        if options.service_name is None:
            held.enter_context(locked(working_dir, graph.name))
        launch = plan_launch(resolved, options.service_name, working_dir, environ, machine)
        # Behind all checks: wrong input leaves nothing behind and fails at once.
        console = _console(launch, environ, out)
        _make_model(resolved.common, choice, working_dir, console)
        held.enter_context(opened(launch.directory, working_dir))
        if options.service_name is None:
            write_secret(launch.directory)
        _write_config_files(launch)
        asyncio.run(_run(launch, working_dir, console, is_whole_graph=options.service_name is None))


def resolve_graph(
    graph: Graph, options: ServeOptions, environ: Mapping[str, str], working_dir: Path, machine: Machine
) -> tuple[ResolvedGraph, EngineChoice]:
    """The graph's settings: defaults of the graph, then files, environment, command line, the later the stronger.

    Writes nothing: wrong input leaves nothing behind.

    Raises:
        ServeError: a source cannot be read, a name is unknown, a value is refused, or the model is missing.
    """
    sections = graph.section_names()
    assignments = from_graph(graph)
    for path in options.config_files:
        assignments += from_config_file(path, sections)
    assignments += from_environment(environ, sections)
    assignments += from_command_line(options.overrides, sections)
    assignments += _address_options(graph, options)
    common = resolve_common(graph, assignments)
    choice = choose_engine(common.engine, graph, machine)
    common = with_model(common.model_copy(update={"engine": choice.engine}), working_dir)
    return resolve_services(graph, common, assignments), choice


def plan_launch(
    resolved: ResolvedGraph,
    service_name: str | None,
    working_dir: Path,
    environ: Mapping[str, str],
    machine: Machine,
) -> Launch:
    """The processes of the whole graph, or of one service that joins a running one. Chooses ports, writes nothing.

    Raises:
        ServeError: a port is taken, a program is missing, or there is no running graph to join.
    """
    # A service that joins a graph cannot know which GPUs that one has: it sees what its environment shows.
    gpus = GpuShares(machine.visible_gpus(environ) if service_name is None else ())
    graph = resolved.graph
    plane_names = [spec.name for spec in graph.planes] if needs_embedded_nats(environ) else []
    service_names = [spec.name for spec in graph.services]
    if service_name is None:
        directory = graph_run_directory(working_dir, graph.name)
        resolved = with_chosen_ports(resolved, plane_names + service_names)
        planes = open_planes(environ, _nats_settings(resolved), directory.discovery_dir)
        stage_names = [plane_names, service_names]
        url = frontend_url(resolved)
    else:
        running = read_run_info(run_info_path(working_dir, graph.name))
        directory = service_run_directory(working_dir, graph.name, service_name)
        resolved = with_chosen_ports(resolved, [service_name])
        planes = join_planes(environ, running, graph.name)
        stage_names = [[service_name]]
        url = running.url if running else None
    # A service that joins has the secret of the graph that runs here, if there is one.
    secret_file = graph_run_directory(working_dir, graph.name).secret_file
    has_secret = service_name is None or secret_file.exists()
    stages = tuple(
        tuple(
            process
            for service in resolved.services
            if service.spec.name in names
            for process in plan_processes(
                service,
                resolved.common,
                planes,
                directory,
                environ,
                gpus,
                secret_file=secret_file if has_secret else None,
            )
        )
        for names in stage_names
        if names
    )
    return Launch(resolved, planes, directory, stages, url)


async def _run(launch: Launch, working_dir: Path, console: Console, *, is_whole_graph: bool) -> None:
    started_s = time.monotonic()
    resolved = launch.resolved

    def announce() -> None:
        took_s = time.monotonic() - started_s
        console.say(ready_text(launch.url, resolved.common.model_name or "", len(launch.processes), took_s))

    def forget_dead() -> None:
        if launch.planes.discovery_dir is not None:
            remove_dead(launch.planes.discovery_dir)

    if not is_whole_graph:
        await Supervisor(launch.stages, working_dir, console, on_ready=announce, on_death=forget_dead).run()
        return
    info_path = run_info_path(working_dir, resolved.graph.name)
    record = RunRecord(info_path, resolved, launch.planes, launch.url, working_dir, console)
    try:
        supervisor = Supervisor(
            launch.stages,
            working_dir,
            console,
            on_ready=announce,
            on_change=record.update,
            on_death=forget_dead,
        )
        await supervisor.run()
    finally:
        record.remove()


def _console(launch: Launch, environ: Mapping[str, str], out: TextIO) -> Console:
    common = launch.resolved.common
    width = max(len(process.name) for process in launch.processes)
    services = [spec.name for spec in launch.resolved.graph.all_services()]
    shows_requests = common.log_level == "debug" or "DYN_LOG" in environ
    return Console(out, services, width, common.log_format, shows_requests=shows_requests)


def _make_model(common: CommonSettings, choice: EngineChoice, working_dir: Path, console: Console) -> None:
    """
    Raises:
        ServeError: the model's folder cannot be made.
    """
    console.report(EngineChosen(choice.engine, choice.reason, common.model_name or ""))
    make_model(common, working_dir, lambda line: console.report(ModelBeingMade(line)))


def _address_options(graph: Graph, options: ServeOptions) -> list[Assignment]:
    """--host and --port mean the service that lists the model."""
    values = {"host": options.host, "port": options.port}
    given = {key: value for key, value in values.items() if value is not None}
    if not given:
        return []
    frontends = [spec.name for spec in graph.services if spec.ready is ReadyKind.MODEL_LISTED]
    if not frontends:
        raise SettingsError("port", f"graph {graph.name} has no HTTP frontend", "command line")
    return [Assignment(frontends[0], (key,), value, f"--{key}") for key, value in given.items()]


def _check_service(graph: Graph, name: str) -> None:
    valid = [spec.name for spec in graph.services]
    if name not in valid:
        raise UnknownServiceError(name, valid, "--service-name")


def _nats_settings(resolved: ResolvedGraph) -> NatsSettings:
    for service in resolved.services:
        if isinstance(service.settings, NatsSettings):
            return service.settings
    return NatsSettings()


def _write_config_files(launch: Launch) -> None:
    for process in launch.processes:
        process.config_file.write_text(process.config_json, encoding="utf-8")
