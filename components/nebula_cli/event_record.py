"""Messages of the event plane, decoded: one record for each event in them."""

from dataclasses import dataclass

from nebula_protocol.codec import decode
from nebula_protocol.events import (
    Decision,
    Envelope,
    KvEvent,
    PicEvent,
    SplitReview,
    WorkerKvEvent,
    WorkerPicEvents,
)
from nebula_protocol.ids import WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.subjects import Topic, topic_of

EventBody = KvEvent | PicEvent | Decision | SplitReview


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    published_at_ms: int
    """Since 1970, by the publisher's clock."""
    topic: Topic
    namespace: str
    component: str
    publisher_id: int
    sequence: int
    """Of the message, per publisher; several events may share one message."""
    worker: WorkerWithDpRank | None
    """Whose KV changed; for a decision, where the request went; None where it is about all workers."""
    epoch: WorkerEpoch | None
    """None where the topic does not tell."""
    tier: str | None
    body: EventBody


def decode_message(subject: str, data: bytes) -> tuple[EventRecord, ...]:
    """The events of one message, in order.

    Raises:
        DecodeError: not an event subject, or not what its topic promises.
    """
    topic = topic_of(subject)
    envelope = decode(data, Envelope)
    _, namespace, _, component, *_ = subject.split(".")

    def record(
        worker: WorkerWithDpRank | None,
        body: EventBody,
        epoch: WorkerEpoch | None = None,
        tier: str | None = None,
    ) -> EventRecord:
        return EventRecord(
            published_at_ms=envelope.published_at,
            topic=topic,
            namespace=namespace,
            component=component,
            publisher_id=envelope.publisher_id,
            sequence=envelope.sequence,
            worker=worker,
            epoch=epoch,
            tier=tier,
            body=body,
        )

    match topic:
        case Topic.KV_EVENTS:
            return tuple(
                record(WorkerWithDpRank(one.worker_id, one.event.dp_rank), one.event, tier=one.storage_tier)
                for one in decode(envelope.payload, tuple[WorkerKvEvent, ...])
            )
        case Topic.PIC_EVENTS:
            message = decode(envelope.payload, WorkerPicEvents)
            return tuple(
                record(WorkerWithDpRank(message.worker_id, event.dp_rank), event, message.epoch, message.tier)
                for event in message.events
            )
        case Topic.DECISIONS:
            decision = decode(envelope.payload, Decision)
            return (record(decision.plan.target, decision),)
        case Topic.SPLITS:
            return (record(None, decode(envelope.payload, SplitReview)),)


def workers_of(record: EventRecord) -> frozenset[WorkerId]:
    """Every worker that the event is about: for a decision also the other side of each segment's source."""
    workers = [record.worker]
    if isinstance(record.body, Decision):
        workers += [segment.from_worker for segment in record.body.plan.segments]
    return frozenset(worker.worker_id for worker in workers if worker is not None)
