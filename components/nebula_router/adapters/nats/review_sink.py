"""Publishes reviews of the split beside Dynamo's events."""

from nebula_nats.event_publisher import EventPublisher
from nebula_protocol.events import SplitReview


class NatsReviewSink:
    """`ReviewSink` over NATS core."""

    def __init__(self, publisher: EventPublisher) -> None:
        self._publisher = publisher

    async def publish_review(self, review: SplitReview) -> None:
        await self._publisher.publish(review)
