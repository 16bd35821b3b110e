"""Messages of the event plane, decoded: one record for each event in them."""

from dataclasses import dataclass

from nebula_protocol.codec import decode
from nebula_protocol.events import Decision, Envelope, KvEvent, PicEvent, WorkerKvEvent, WorkerPicEvents
from nebula_protocol.ids import WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.subjects import Topic, topic_of


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
    worker: WorkerWithDpRank
    """Whose KV changed; for a decision, where the request went."""
    epoch: WorkerEpoch | None
    """None where the topic does not tell."""
    tier: str | None
    body: KvEvent | PicEvent | Decision


def decode_message(subject: str, data: bytes) -> tuple[EventRecord, ...]:
    """The events of one message, in order.

    Raises:
        DecodeError: not an event subject, or not what its topic promises.
    """
    topic = topic_of(subject)
    envelope = decode(data, Envelope)
    _, namespace, _, component, *_ = subject.split(".")

    def record(
        worker: WorkerWithDpRank,
        body: KvEvent | PicEvent | Decision,
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


def workers_of(record: EventRecord) -> frozenset[WorkerId]:
    """Every worker that the event is about: for a decision also the other side of each segment's source."""
    if not isinstance(record.body, Decision):
        return frozenset((record.worker.worker_id,))
    sources = (segment.from_worker for segment in record.body.plan.segments)
    return frozenset((record.worker.worker_id, *(source.worker_id for source in sources if source is not None)))
