"""Publishes decisions beside Dynamo's events."""

from nebula_nats.event_publisher import EventPublisher
from nebula_protocol.events import Decision


class NatsDecisionSink:
    """`DecisionSink` over NATS core."""

    def __init__(self, publisher: EventPublisher) -> None:
        self._publisher = publisher

    async def publish_decision(self, decision: Decision) -> None:
        await self._publisher.publish(decision)
