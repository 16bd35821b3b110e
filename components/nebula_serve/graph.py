"""What a graph is: the services that run together, as values. Files in `graphs/` hold nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Protocol

from pydantic import BaseModel

from nebula_serve.shared_settings import SHARED_SECTION


class CommandBuilder(Protocol):
    """Makes the command line of a service's process."""

    def __call__(self, settings: BaseModel, config_file: Path) -> tuple[str, ...]:
        """`config_file` holds `settings` as JSON by the time the process starts."""
        ...


class ReadyKind(Enum):
    """How the supervisor learns that a process serves."""

    READY_FILE = "ready_file"
    """The process creates the file that NEBULA_READY_FILE names."""
    MODEL_LISTED = "model_listed"
    """GET /v1/models on the service's port lists the graph's model."""
    NATS_GREETING = "nats_greeting"
    """A TCP connection to the service's port is greeted with NATS's INFO line."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """A service of several equal processes."""

    key: str = "workers"
    """Key of the service's section that holds their number."""
    default: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    name: str
    """Section in YAML and prefix on the command line: `--Name.key=value`."""
    description: str
    settings_model: type[BaseModel]
    command: CommandBuilder
    ready: ReadyKind = ReadyKind.READY_FILE
    replicas: Replicas | None = None
    """None: exactly one process."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Dotted key to value: what this service sets differently from its settings model."""
    inherits: Mapping[str, str] = field(default_factory=dict)
    """Dotted key of this service to the key of the shared section that it takes its value from when nobody sets it."""
    gpus_key: str | None = None
    """Dotted key with the number of GPUs that each process has to itself when it runs the engine vllm."""
    secret_section: str | None = None
    """Key of the settings below which `secret_file` names a secret that all processes of the graph share; where nobody
    sets it, it is the run's own."""
    metrics_port_key: str | None = None
    """Key with the port of a process's own /metrics; a 0 there is replaced by a free port, one for each process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    name: str
    description: str
    services: tuple[ServiceSpec, ...]
    planes: tuple[ServiceSpec, ...] = ()
    """Started before the services, and only where the environment does not name an outside one."""
    engines: tuple[str, ...] = ("sim",)
    """Engines that the workers of this graph can run, the preferred one first."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Dotted `Service.key` to value, over the defaults of the services."""

    def all_services(self) -> tuple[ServiceSpec, ...]:
        return self.planes + self.services

    def section_names(self) -> tuple[str, ...]:
        """Every name that may stand before the first dot of a setting."""
        return (SHARED_SECTION, *(spec.name for spec in self.all_services()))
