"""Which NATS server and which discovery the processes of a graph use."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nebula_serve.errors import PlanesMissingError
from nebula_serve.listening import LOOPBACK, host_in_url, loopback_interface, reachable_host
from nebula_serve.nats import NatsSettings
from nebula_serve.run_info import RunInfo

NATS_SERVER = "NATS_SERVER"
DISCOVERY_BACKEND = "DYN_DISCOVERY_BACKEND"
FILE_KV = "DYN_FILE_KV"
ETCD_ENDPOINTS = "ETCD_ENDPOINTS"


@dataclass(frozen=True, slots=True)
class Planes:
    nats_url: str
    embedded_nats: NatsSettings | None
    """The server to start; None where the environment named one."""
    discovery_dir: Path | None
    """Folder of file discovery; None for etcd or Kubernetes."""
    environment: Mapping[str, str]
    """What every process of the graph gets to find its planes."""


def needs_embedded_nats(environ: Mapping[str, str]) -> bool:
    return not environ.get(NATS_SERVER)


def open_planes(environ: Mapping[str, str], nats: NatsSettings, discovery_dir: Path) -> Planes:
    """Outside planes where the environment names them; else `nats` (with its port chosen) and files in `discovery_dir`.

    DYN_DISCOVERY_BACKEND decides over ETCD_ENDPOINTS; a DYN_FILE_KV of the environment is used as it is.
    """
    embedded = nats if needs_embedded_nats(environ) else None
    nats_url = f"nats://{host_in_url(reachable_host(nats.host))}:{nats.port}" if embedded else environ[NATS_SERVER]
    backend = environ.get(DISCOVERY_BACKEND) or ("etcd" if environ.get(ETCD_ENDPOINTS) else "file")
    environment = {
        NATS_SERVER: nats_url,
        "DYN_EVENT_PLANE": "nats",
        "DYN_REQUEST_PLANE": "tcp",
        DISCOVERY_BACKEND: backend,
    }
    folder = None
    if backend == "file":
        folder = Path(environ.get(FILE_KV) or discovery_dir)
        environment[FILE_KV] = str(folder)
        environment |= {name: value for name, value in _loopback_environment().items() if name not in environ}
    elif environ.get(ETCD_ENDPOINTS):
        environment[ETCD_ENDPOINTS] = environ[ETCD_ENDPOINTS]
    return Planes(nats_url, embedded, folder, environment)


def join_planes(environ: Mapping[str, str], running: RunInfo | None, graph_name: str) -> Planes:
    """The planes of a graph that runs already: those that the environment names, else those of `running`.

    Raises:
        PlanesMissingError: there are neither.
    """
    named = environ.get(NATS_SERVER) and (environ.get(ETCD_ENDPOINTS) or environ.get(FILE_KV))
    if named or (environ.get(NATS_SERVER) and environ.get(DISCOVERY_BACKEND) == "kubernetes"):
        return open_planes(environ, NatsSettings(), Path())
    if running is None:
        raise PlanesMissingError(
            f"one service alone joins a running graph: start `dynamo serve` of {graph_name} in this working "
            f"directory first, or set {NATS_SERVER} and {ETCD_ENDPOINTS} (or {FILE_KV})"
        )
    folder = running.environment.get(FILE_KV)
    return Planes(running.nats_url, None, Path(folder) if folder else None, running.environment)


def _loopback_environment() -> dict[str, str]:
    """Processes that find each other through files are on one machine: none needs to listen beyond loopback."""
    variables = {"DYN_TCP_RPC_HOST": LOOPBACK, "DYN_SYSTEM_HOST": LOOPBACK}
    interface = loopback_interface()
    if interface is not None:
        # Despite its name this variable wants the name of an interface.
        variables["DYN_TCP_RESPONSE_STREAM_HOST"] = interface
    return variables
