"""Publishes event payloads in Dynamo's envelope."""

import itertools
import time

import structlog
from nats.aio.client import Client
from nats.errors import Error as NatsError

from nebula_protocol.codec import encode
from nebula_protocol.events import Envelope
from nebula_protocol.subjects import Topic, event_subject

log = structlog.get_logger()


class EventPublisher:
    """One publisher of one topic; its sequence numbers are consecutive from 0."""

    def __init__(self, client: Client, *, namespace: str, component: str, topic: Topic, publisher_id: int) -> None:
        self._client = client
        self._subject = event_subject(namespace, component, "generate", topic)
        self._topic = topic
        self._publisher_id = publisher_id
        self._sequence = itertools.count()

    async def publish(self, payload: object) -> None:
        """Sends one payload; nobody waits for a reader. One that NATS does not take is lost, as readers will see."""
        envelope = Envelope(
            publisher_id=self._publisher_id,
            sequence=next(self._sequence),
            published_at=time.time_ns() // 1_000_000,
            topic=self._topic,
            payload=encode(payload),
        )
        try:
            await self._client.publish(self._subject, encode(envelope))
        except NatsError as error:
            # Closed, or away for so long that the client's buffer is full. Readers of state see a gap and ask for all.
            log.warning("event_lost", topic=self._topic, sequence=envelope.sequence, error=str(error))
