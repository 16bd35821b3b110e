"""Ports: settings of a service that listens on one, and finding free ones."""

import contextlib
import errno
import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack

import psutil
from pydantic import BaseModel, ConfigDict, Field

from nebula_serve.errors import AddressError, PortInUseError

LOOPBACK = "127.0.0.1"
# Dynamo reads the number as a signed 16-bit integer, and the system's own choices begin at 32768.
_SYSTEM_PORTS = range(20_000, 32_768)
_EVERY_ADDRESS = {"0.0.0.0": LOOPBACK, "::": "::1", "": LOOPBACK}


class ListenSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    host: str = LOOPBACK
    """Address to bind."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to bind; 0 picks a free one."""


def reachable_host(host: str) -> str:
    """The address at which a local client reaches a server bound to `host`."""
    return _EVERY_ADDRESS.get(host, host)


def host_in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def loopback_interface() -> str | None:
    """Name of the network interface with the loopback address, such as lo."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == LOOPBACK for address in addresses):
            return name
    return None


def find_free_port(host: str = LOOPBACK) -> int:
    """A port that was free a moment ago; another process may still take it first."""
    with _bound_socket(host, 0) as bound:
        return int(bound.getsockname()[1])


def find_free_system_ports(count: int) -> Sequence[int]:
    """Distinct ports on loopback for Dynamo's system server, which takes no number above 32767.

    Raises:
        OSError: so many are not free.
    """
    start = random.randrange(len(_SYSTEM_PORTS))
    candidates = (_SYSTEM_PORTS[(start + step) % len(_SYSTEM_PORTS)] for step in range(len(_SYSTEM_PORTS)))
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            port = next(candidates, None)
            if port is None:
                raise OSError(errno.EADDRINUSE, f"fewer than {count} free ports in {_SYSTEM_PORTS}")
            with contextlib.suppress(OSError):
                held.enter_context(_bound_socket(LOOPBACK, port))
                found.append(port)
    return found


def check_port_free(service: str, host: str, port: int) -> None:
    """
    Raises:
        PortInUseError: something listens on `port` already.
        AddressError: `host` is no address of this machine, or the port needs privileges.
    """
    try:
        _bound_socket(host, port).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(service, host, port) from error
        raise AddressError(service, host, error.strerror or str(error)) from error


def choose_port(service: str, settings: ListenSettings) -> int:
    """The configured port, checked, or a free one where it is 0.

    Raises:
        PortInUseError, AddressError: as `check_port_free`.
    """
    if settings.port:
        check_port_free(service, settings.host, settings.port)
        return settings.port
    try:
        return find_free_port(settings.host)
    except OSError as error:
        raise AddressError(service, settings.host, error.strerror or str(error)) from error


def _bound_socket(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        # As servers do: a port in TIME_WAIT is free, one that is listened on is not.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound
