"""From resolved settings to the exact processes: command lines, environments, settings files, ready probes."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel

from nebula_serve.gpu_shares import NO_GPUS, GpuShares
from nebula_serve.graph import CommandBuilder, ReadyKind, ServiceSpec
from nebula_serve.listening import (
    LOOPBACK,
    ListenSettings,
    choose_port,
    find_free_system_ports,
    host_in_url,
    reachable_host,
)
from nebula_serve.planes import Planes
from nebula_serve.readiness import (
    READY_FILE_VARIABLE,
    ModelListedProbe,
    NatsGreetingProbe,
    ReadyFileProbe,
    ReadyProbe,
)
from nebula_serve.resolve import ResolvedGraph, ResolvedService
from nebula_serve.run_directory import RunDirectory
from nebula_serve.shared_settings import CommonSettings

PROCESS_NAME_VARIABLE = "NEBULA_PROCESS_NAME"
SYSTEM_PORT_VARIABLE = "DYN_SYSTEM_PORT"
"""Port of the HTTP server with /metrics and /health that Dynamo's runtime opens in a process."""
# Dynamo gives routers elsewhere 5 s to notice that a worker leaves; here all of them stop together.
_STOP_ENVIRONMENT = {"DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "1"}
LOG_FORMAT_VARIABLE = "NEBULA_LOG_FORMAT"
_DYNAMO_LOG_FILTERS = {
    "debug": "debug",
    # Without lines for every request, every question whether it is ready, and images that nobody sends.
    "info": "info,dynamo_llm::http::service=warn,dynamo_runtime::pipeline::network=warn,mm_routing=error",
    "warning": "warn",
    "error": "error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    name: str
    """Unique in the graph: the service's name, with -0, -1, ... for a service with replicas."""
    service: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Added to the supervisor's own environment."""
    config_file: Path
    config_json: str
    """Written to `config_file` before the first start."""
    probe: ReadyProbe
    metrics_url: str | None = None


def python_module(module: str) -> CommandBuilder:
    """`python -m MODULE --config-file FILE` in the interpreter that runs `dynamo serve`."""

    def build(settings: BaseModel, config_file: Path) -> tuple[str, ...]:
        del settings
        return (sys.executable, "-m", module, "--config-file", str(config_file))

    return build


def with_chosen_ports(resolved: ResolvedGraph, started: Sequence[str]) -> ResolvedGraph:
    """The same graph with a real port for each service in `started` that listens on one.

    Raises:
        PortInUseError: a configured port is taken.
        AddressError: a configured host is no address of this machine.
    """
    services = []
    for service in resolved.services:
        settings = service.settings
        if service.spec.name in started and isinstance(settings, ListenSettings):
            port = choose_port(service.spec.name, settings)
            service = replace(service, settings=settings.model_copy(update={"port": port}))
        services.append(service)
    return replace(resolved, services=tuple(services))


def plan_processes(
    service: ResolvedService,
    common: CommonSettings,
    planes: Planes,
    directory: RunDirectory,
    environ: Mapping[str, str],
    gpus: GpuShares = NO_GPUS,
    *,
    secret_file: Path | None = None,
) -> tuple[ProcessSpec, ...]:
    """The processes of one service, in the order of their numbers.

    Args:
        secret_file: of the run, for services that share a secret.

    Raises:
        GpuMissingError: they need more GPUs than are left.
    """
    spec = service.spec
    names = [spec.name] if spec.replicas is None else [f"{spec.name}-{i}" for i in range(service.num_processes)]
    metrics_ports = _metrics_ports(service)
    shared_environment = {
        **planes.environment,
        **_logging_environment(common, environ),
        **{name: value for name, value in _STOP_ENVIRONMENT.items() if name not in environ},
        "PYTHONUNBUFFERED": "1",
    }
    processes = []
    for name, metrics_port in zip(names, metrics_ports, strict=True):
        own = _shared_secret(service, secret_file)
        if spec.metrics_port_key is not None:
            own[spec.metrics_port_key] = metrics_port
        settings = service.process_settings(own)
        config_file = directory.config_file(name)
        processes.append(
            ProcessSpec(
                name=name,
                service=spec.name,
                argv=spec.command(settings, config_file),
                environment={
                    **shared_environment,
                    **gpus.take(name, _num_gpus(spec, settings, common)),
                    READY_FILE_VARIABLE: str(directory.ready_file(name)),
                    PROCESS_NAME_VARIABLE: name,
                    **({SYSTEM_PORT_VARIABLE: str(metrics_port)} if metrics_port else {}),
                },
                config_file=config_file,
                config_json=settings.model_dump_json(indent=2),
                probe=_probe(service, settings, common, directory.ready_file(name)),
                metrics_url=f"http://{LOOPBACK}:{metrics_port}/metrics" if metrics_port else None,
            )
        )
    return tuple(processes)


def frontend_url(resolved: ResolvedGraph) -> str | None:
    """The address of the service whose readiness is a listed model, or None in a graph without one."""
    for service in resolved.services:
        if service.spec.ready is ReadyKind.MODEL_LISTED and isinstance(service.settings, ListenSettings):
            return _local_url(service.settings)
    return None


def _shared_secret(service: ResolvedService, secret_file: Path | None) -> dict[str, object]:
    """The section with the secret's file; nothing where the service wants none, or has one."""
    key = service.spec.secret_section
    if key is None or secret_file is None:
        return {}
    section = service.settings.model_dump()[key]
    return {} if section["secret_file"] else {key: {**section, "secret_file": str(secret_file)}}


def _metrics_ports(service: ResolvedService) -> Sequence[int]:
    """One for each process; 0 for a service without metrics of its own."""
    key = service.spec.metrics_port_key
    if key is None:
        return [0] * service.num_processes
    configured = int(service.settings.model_dump()[key])
    if configured:
        return range(configured, configured + service.num_processes)
    return find_free_system_ports(service.num_processes)


def _num_gpus(spec: ServiceSpec, settings: BaseModel, common: CommonSettings) -> int:
    if spec.gpus_key is None or common.engine != "vllm":
        return 0
    value: object = settings.model_dump()
    for key in spec.gpus_key.split("."):
        value = value[key] if isinstance(value, dict) else None
    if not isinstance(value, int):
        raise TypeError(f"{spec.name}.{spec.gpus_key} holds no number")
    return value


def _logging_environment(common: CommonSettings, environ: Mapping[str, str]) -> dict[str, str]:
    variables: dict[str, str] = {LOG_FORMAT_VARIABLE: common.log_format}
    if "DYN_LOG" not in environ:
        variables["DYN_LOG"] = _DYNAMO_LOG_FILTERS[common.log_level]
    if common.log_format == "json":
        variables["DYN_LOGGING_JSONL"] = "1"
    return variables


def _probe(service: ResolvedService, settings: BaseModel, common: CommonSettings, ready_file: Path) -> ReadyProbe:
    match service.spec.ready:
        case ReadyKind.READY_FILE:
            return ReadyFileProbe(ready_file)
        case ReadyKind.MODEL_LISTED:
            return ModelListedProbe(_local_url(_listening(settings)), common.model_name or "")
        case ReadyKind.NATS_GREETING:
            listening = _listening(settings)
            return NatsGreetingProbe(reachable_host(listening.host), listening.port)


def _listening(settings: BaseModel) -> ListenSettings:
    if not isinstance(settings, ListenSettings):
        raise TypeError(f"{type(settings).__name__} names no port to ask for readiness")
    return settings


def _local_url(settings: ListenSettings) -> str:
    return f"http://{host_in_url(reachable_host(settings.host))}:{settings.port}"
