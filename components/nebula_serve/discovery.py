"""File discovery without the dead: a killed process leaves its registration behind until its lease ends, 10 s later.

Dynamo's frontend would send requests there until then, and answer them with 500.
"""

import contextlib
import socket
from pathlib import Path
from urllib.parse import unquote

import msgspec

_CONNECT_LIMIT_S = 0.5
_RECORDS = ("v1/mdc", "v1/instances")
"""Where Dynamo keeps a model's card and its endpoint's address, in the order in which they go."""


class _Transport(msgspec.Struct, frozen=True):
    tcp: str | None = None


class _Instance(msgspec.Struct, frozen=True):
    transport: _Transport = _Transport()


def remove_dead(folder: Path) -> tuple[str, ...]:
    """Removes the registrations of processes of this machine that nobody listens for any more; returns their names.

    Args:
        folder: Of file discovery, as DYN_FILE_KV names it.
    """
    dead = {_instance_id(path) for path in _files(folder / "v1/instances") if _is_dead(path)}
    removed = []
    for path in (path for records in _RECORDS for path in _files(folder / records)):
        if _instance_id(path) in dead:
            path.unlink(missing_ok=True)
            removed.append(unquote(path.name))
    return tuple(removed)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _instance_id(path: Path) -> str:
    return unquote(path.name).rpartition("/")[2]


def _is_dead(path: Path) -> bool:
    """Only where a connection is refused: a frozen process still has its socket, and is another matter."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, ValueError):
        address = msgspec.json.decode(path.read_bytes(), type=_Instance).transport.tcp
        if address is None:
            return False
        host, _, port = address.partition("/")[0].rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_LIMIT_S).close()
        except ConnectionRefusedError:
            return True
    return False
