"""Event messages from a NATS server, in order of arrival."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import nats
import nats.errors
from nats.aio.msg import Msg

from nebula_cli.errors import CliError, ConnectionLostError
from nebula_protocol.subjects import Topic, all_event_subjects

_CONNECT_TIMEOUT_S = 5
_RETRY_S = 0.1

Message = tuple[str, bytes]
"""Subject and data."""


@asynccontextmanager
async def open_event_feed(url: str, topics: Iterable[Topic]) -> AsyncIterator[AsyncIterator[Message]]:
    """Messages of `topics` from now on; NATS keeps none of the past.

    Raises:
        CliError: no NATS server can be reached at `url`.
        ConnectionLostError: while iterating, when the server goes away.
    """
    queue: asyncio.Queue[Message | None] = asyncio.Queue()

    async def take(message: Msg) -> None:
        queue.put_nowait((message.subject, message.data))

    async def end() -> None:
        queue.put_nowait(None)

    causes: list[Exception] = []

    async def keep_cause(error: Exception) -> None:
        causes.append(error)

    try:
        client = await nats.connect(
            url,
            allow_reconnect=False,
            connect_timeout=_CONNECT_TIMEOUT_S,
            # Also bounds the first connect: without them the client tries for two minutes.
            max_reconnect_attempts=1,
            reconnect_time_wait=_RETRY_S,
            closed_cb=end,
            error_cb=keep_cause,
        )
    except (nats.errors.Error, OSError, ValueError, TimeoutError) as error:
        cause = causes[-1] if causes else error
        raise CliError(f"no NATS server at {_place(url)}: {str(cause) or type(cause).__name__}") from error
    try:
        for topic in topics:
            await client.subscribe(all_event_subjects(topic), cb=take)
        await client.flush()
        yield _messages(queue, url)
    finally:
        await client.close()


async def _messages(queue: asyncio.Queue[Message | None], url: str) -> AsyncIterator[Message]:
    while (message := await queue.get()) is not None:
        yield message
    raise ConnectionLostError(f"the NATS server at {_place(url)} closed the connection")


def _place(url: str) -> str:
    """Host and port only: a URL may hold a password."""
    return urlsplit(url if "//" in url else f"//{url}").netloc.rpartition("@")[2]
