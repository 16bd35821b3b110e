"""Event messages of all workers of one namespace, from NATS."""

import asyncio
from collections.abc import AsyncIterator
from typing import Self

from nats.aio.client import Client
from nats.aio.msg import Msg

from nebula_nats.connection import flush
from nebula_protocol.subjects import Topic, event_subject

# Beyond this many unread messages the oldest are lost, which shows as a gap and is repaired by a full state.
_MAX_PENDING = 65_536
_TOPICS = (Topic.KV_EVENTS, Topic.PIC_EVENTS)


class NatsEventFeed:
    """`EventFeed` over NATS core; messages of one publisher and topic keep their order."""

    def __init__(self, max_pending: int) -> None:
        self._queue: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(maxsize=max_pending)

    @classmethod
    async def subscribe(cls, client: Client, namespace: str, *, max_pending: int = _MAX_PENDING) -> Self:
        """
        Raises:
            nats.errors.Error: the server does not answer.
        """
        feed = cls(max_pending)
        for topic in _TOPICS:
            await client.subscribe(event_subject(namespace, "*", "*", topic), cb=feed._on_message)
        await flush(client)
        return feed

    async def _on_message(self, message: Msg) -> None:
        if self._queue.full():
            self._queue.get_nowait()
        self._queue.put_nowait((message.subject, message.data))

    async def messages(self) -> AsyncIterator[tuple[str, bytes]]:
        while True:
            yield await self._queue.get()
