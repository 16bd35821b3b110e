"""Connects to NATS and stays connected."""

import nats
import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

log = structlog.get_logger()

_FIRST_CONNECT_S = 10


class NatsUnavailableError(Exception):
    """No NATS server answers where one should be."""


async def connect(url: str, name: str) -> Client:
    """A client that reconnects for ever once it was connected.

    Raises:
        NatsUnavailableError: no server answers at `url`.
    """

    async def on_error(error: Exception) -> None:
        log.warning("nats_failed", error=str(error) or type(error).__name__)

    async def on_disconnected() -> None:
        log.warning("nats_disconnected", url=url)

    async def on_reconnected() -> None:
        log.info("nats_reconnected", url=url)

    try:
        return await nats.connect(
            url,
            name=name,
            connect_timeout=_FIRST_CONNECT_S,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.5,
            allow_reconnect=True,
            error_cb=on_error,
            disconnected_cb=on_disconnected,
            reconnected_cb=on_reconnected,
        )
    except (NatsError, OSError) as error:
        raise NatsUnavailableError(f"no NATS server answers at {url}: {error}") from error
