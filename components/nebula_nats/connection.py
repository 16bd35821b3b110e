"""Connects to NATS and stays connected."""

import asyncio

import nats
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

log = structlog.get_logger()

_CONNECT_TIMEOUT_S = 10
# A server that starts together with this process needs a moment.
_PATIENCE_S = 10.0


class NatsUnavailableError(Exception):
    """No NATS server answers where one should be."""


async def connect(url: str, name: str, *, patience_s: float = _PATIENCE_S) -> Client:
    """A client that reconnects for ever once it was connected.

    Args:
        patience_s: how long to try for the first connection.

    Raises:
        NatsUnavailableError: no server answers at `url` in that time.
    """
    server = url.rpartition("@")[2]  # Without a user's password.

    async def on_error(error: Exception) -> None:
        log.warning("nats_failed", server=server, error=_reason_of(error))

    async def on_disconnected() -> None:
        log.warning("nats_disconnected", server=server)

    async def on_reconnected() -> None:
        log.info("nats_reconnected", server=server)

    try:
        # Left to itself, the client tries for the first connection as long as for a lost one: for ever.
        async with asyncio.timeout(patience_s):
            return await nats.connect(
                url,
                name=name,
                connect_timeout=_CONNECT_TIMEOUT_S,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.5,
                allow_reconnect=True,
                error_cb=on_error,
                disconnected_cb=on_disconnected,
                reconnected_cb=on_reconnected,
            )
    except (NatsError, OSError) as error:
        raise NatsUnavailableError(f"no NATS server answers at {server}: {_reason_of(error)}") from error


async def ensure_reachable(url: str) -> None:
    """Tries for a moment, and logs nothing.

    Raises:
        NatsUnavailableError: no server answers at `url`.
    """

    async def ignore(_: Exception) -> None:
        """The error is raised as well."""

    try:
        async with asyncio.timeout(_PATIENCE_S):
            client = await nats.connect(
                url,
                connect_timeout=_CONNECT_TIMEOUT_S,
                max_reconnect_attempts=1,
                reconnect_time_wait=0.1,
                error_cb=ignore,
            )
    except (NatsError, OSError) as error:
        server = url.rpartition("@")[2]
        raise NatsUnavailableError(f"no NATS server answers at {server}: {_reason_of(error)}") from error
    await client.close()


async def flush(client: Client) -> None:
    """Waits until the server has taken in all that the client was told so far, subscriptions too.

    nats-py writes the ping of its own `flush` ahead of what is still queued. By the time that is answered the queue has
    been written, and a second ping comes behind it.

    Raises:
        nats.errors.Error: the server does not answer, or the connection is closed.
    """
    await client.flush()
    await client.flush()


def _reason_of(error: Exception) -> str:
    return str(error) or type(error).__name__
