"""Dynamo's own frontend as a service of a graph."""

import sys
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from nebula_serve.listening import ListenSettings


class FrontendSettings(ListenSettings):
    host: str = "127.0.0.1"
    """Address that the HTTP server binds; 0.0.0.0 lets other machines in."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port of the HTTP server; 0 picks a free one."""
    namespace: str = "nebula"
    """Only models registered in this Dynamo namespace are served."""
    router_mode: Literal[
        "round-robin", "random", "power-of-two", "kv", "direct", "least-loaded", "device-aware-weighted"
    ] = "round-robin"
    """How Dynamo chooses among the instances it sees; `kv` is its prefix-aware router."""
    block_size_tokens: int | None = Field(default=None, ge=1, le=1024)
    """Tokens per KV block, for router_mode kv."""
    migration_limit: int = Field(default=3, ge=0, le=1024)
    """How often an answer goes on at another decode worker when its own is lost."""
    extra_args: tuple[str, ...] = ()
    """Further flags of `python -m dynamo.frontend`, as they are."""


def frontend_command(settings: BaseModel, config_file: Path) -> tuple[str, ...]:
    """`python -m dynamo.frontend` takes flags, no file."""
    del config_file
    if not isinstance(settings, FrontendSettings):
        raise TypeError(f"the frontend needs FrontendSettings, not {type(settings).__name__}")
    argv = [
        *(sys.executable, "-m", "dynamo.frontend"),
        *("--http-host", settings.host),
        *("--http-port", str(settings.port)),
        *("--namespace", settings.namespace),
        *("--router-mode", settings.router_mode),
        *("--migration-limit", str(settings.migration_limit)),
    ]
    if settings.block_size_tokens is not None:
        argv += ["--kv-cache-block-size", str(settings.block_size_tokens)]
    return (*argv, *settings.extra_args)
