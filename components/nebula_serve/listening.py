"""Ports: settings of a service that listens on one, and finding free ones."""

import errno
import socket
from collections.abc import Sequence
from contextlib import ExitStack

from pydantic import BaseModel, ConfigDict, Field

from nebula_serve.errors import AddressError, PortInUseError

LOOPBACK = "127.0.0.1"
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


def find_free_ports(count: int, host: str = LOOPBACK) -> Sequence[int]:
    """Distinct ports that were free a moment ago; another process may still take one first."""
    with ExitStack() as held:
        sockets = [held.enter_context(_bound_socket(host, 0)) for _ in range(count)]
        return [int(bound.getsockname()[1]) for bound in sockets]


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
        return find_free_ports(1, settings.host)[0]
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
