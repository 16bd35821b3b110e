"""Publishes decisions beside Dynamo's events, in the same envelope."""

import itertools
import time

from nats.aio.client import Client

from nebula_protocol.codec import encode
from nebula_protocol.events import Decision, Envelope
from nebula_protocol.subjects import Topic, event_subject


class NatsDecisionSink:
    """`DecisionSink` over NATS core: nobody waits for a reader."""

    def __init__(self, client: Client, *, namespace: str, component: str, publisher_id: int) -> None:
        self._client = client
        self._subject = event_subject(namespace, component, "generate", Topic.DECISIONS)
        self._publisher_id = publisher_id
        self._sequence = itertools.count()

    async def publish_decision(self, decision: Decision) -> None:
        envelope = Envelope(
            publisher_id=self._publisher_id,
            sequence=next(self._sequence),
            published_at=time.time_ns() // 1_000_000,
            topic=Topic.DECISIONS,
            payload=encode(decision),
        )
        await self._client.publish(self._subject, encode(envelope))
