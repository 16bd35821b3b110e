"""Records between the routers of one pool, over NATS core."""

import asyncio
from collections.abc import Callable

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from nebula_protocol.subjects import routers_subject

log = structlog.get_logger()

_MAX_WAITING = 10_000
"""Records that wait for NATS; then the oldest goes. What is lost costs a plan its precision, never an answer."""


class NatsRouterPeers:
    """Sends in the order in which it is told, and never lets the caller wait."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._subject = routers_subject(namespace)
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()

    def send(self, data: bytes) -> None:
        if self._outbox.qsize() >= _MAX_WAITING:
            self._outbox.get_nowait()
        self._outbox.put_nowait(data)

    async def run(self, take: Callable[[bytes], None]) -> None:
        """Until cancelled: gives others' records to `take`, and sends what waits."""

        async def on_message(message: Msg) -> None:
            take(message.data)

        await self._client.subscribe(self._subject, cb=on_message)
        while True:
            data = await self._outbox.get()
            try:
                await self._client.publish(self._subject, data)
            except NatsError as error:
                log.warning("router_record_lost", error=str(error))
