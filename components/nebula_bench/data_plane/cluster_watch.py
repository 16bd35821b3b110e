"""What a running graph tells on NATS, kept to be judged afterwards: decisions, and what entered or left the stores."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from nebula_bench.cluster.worker_log import WorkerLog
from nebula_bench.errors import BenchError
from nebula_nats.connection import NatsUnavailableError, connect
from nebula_protocol.codec import decode
from nebula_protocol.events import Decision, Envelope, WorkerPicEvents
from nebula_protocol.ids import RequestId, SegmentHash
from nebula_protocol.subjects import Topic, all_event_subjects

_MS_PER_S = 1_000


class _Message(Protocol):
    data: bytes


@dataclass(frozen=True, slots=True)
class KnownAtDecision:
    published_at_s: float
    """Seconds of the epoch."""
    segments: frozenset[SegmentHash]
    """Of the plan, those of which the router knew a copy."""


@dataclass(slots=True)
class ClusterWatch:
    """Messages are read when somebody wants to know: while the graph runs, its machine has other work."""

    decisions: list[bytes] = field(default_factory=list)
    store_events: list[bytes] = field(default_factory=list)

    def known_at_decision(self) -> Mapping[RequestId, KnownAtDecision]:
        """By request; the last attempt counts.

        Raises:
            DecodeError: a message is no decision.
        """
        known: dict[RequestId, KnownAtDecision] = {}
        for data in self.decisions:
            envelope = decode(data, Envelope)
            decision = decode(envelope.payload, Decision)
            unknown = frozenset(decision.unknown_segments)
            segments = frozenset(
                segment.segment_hash for at, segment in enumerate(decision.plan.segments) if at not in unknown
            )
            known[decision.request_id] = KnownAtDecision(_published_at_s(envelope), segments)
        return known

    def worker_log(self, publish_delay_s: float) -> WorkerLog:
        """What was stored when, if every event was published so late.

        Raises:
            DecodeError: a message is none of a store's.
        """
        # Those of different workers may overtake one another on their way.
        envelopes = sorted((decode(data, Envelope) for data in self.store_events), key=_published_at_s)
        log = WorkerLog()
        for envelope in envelopes:
            message = decode(envelope.payload, WorkerPicEvents)
            log.record_events(message.worker_id, message.events, _published_at_s(envelope) - publish_delay_s)
        return log


def _published_at_s(envelope: Envelope) -> float:
    return envelope.published_at / _MS_PER_S


@asynccontextmanager
async def open_watch(nats_url: str) -> AsyncIterator[ClusterWatch]:
    """Fills with everything that is published while it is open. To be opened before anything is stored.

    Raises:
        BenchError: no NATS server answers.
    """
    watch = ClusterWatch()

    async def take_decision(message: _Message) -> None:
        watch.decisions.append(message.data)

    async def take_event(message: _Message) -> None:
        watch.store_events.append(message.data)

    try:
        client = await connect(nats_url, "nebula-bench")
    except NatsUnavailableError as error:
        raise BenchError(str(error)) from error
    try:
        await client.subscribe(all_event_subjects(Topic.DECISIONS), cb=take_decision)
        await client.subscribe(all_event_subjects(Topic.PIC_EVENTS), cb=take_event)
        await client.flush()
        yield watch
    finally:
        await client.close()
