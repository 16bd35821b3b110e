"""The router's ports to NATS within one process: events, full states, decisions."""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence

from nebula_protocol.codec import encode
from nebula_protocol.events import Decision, Envelope
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import StateChunk
from nebula_protocol.subjects import Topic, event_subject
from nebula_router.errors import WorkerGoneError


def event_message(topic: Topic, payload: object, namespace: str = "pool") -> tuple[str, bytes]:
    """(subject, data) as a prefill worker publishes it."""
    envelope = Envelope(publisher_id=1, sequence=0, published_at=0, topic=topic, payload=encode(payload))
    return event_subject(namespace, "prefill", "generate", topic), encode(envelope)


class FakeEventFeed:
    """`EventFeed`."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    def put(self, subject: str, data: bytes) -> None:
        self._queue.put_nowait((subject, data))

    def publish(self, topic: Topic, payload: object) -> None:
        self.put(*event_message(topic, payload))

    async def messages(self) -> AsyncIterator[tuple[str, bytes]]:
        while True:
            yield await self._queue.get()


class FakeStateSource:
    """`StateSource`. A worker answers with the state it was given; before that, and where it is told so, not at all."""

    def __init__(self) -> None:
        self.asked: list[WorkerId] = []
        self._states: dict[WorkerId, Sequence[StateChunk]] = {}
        self._failures: defaultdict[WorkerId, deque[Exception]] = defaultdict(deque)
        self._gates: dict[WorkerId, asyncio.Event] = {}

    def give(self, chunks: Sequence[StateChunk]) -> None:
        """The worker's state from now on."""
        self._states[chunks[0].card.worker_id] = chunks

    def fail(self, worker_id: int, *errors: Exception) -> None:
        """The next fetches end with these."""
        self._failures[WorkerId(worker_id)].extend(errors)

    def hold(self, worker_id: int) -> asyncio.Event:
        """Fetches wait until the event is set; the answer is the state at that moment."""
        return self._gates.setdefault(WorkerId(worker_id), asyncio.Event())

    async def fetch_state(self, worker_id: WorkerId) -> Sequence[StateChunk]:
        self.asked.append(worker_id)
        await asyncio.sleep(0)
        if worker_id in self._gates:
            await self._gates[worker_id].wait()
        if self._failures[worker_id]:
            raise self._failures[worker_id].popleft()
        if worker_id not in self._states:
            raise WorkerGoneError(worker_id, "it has no state")
        return self._states[worker_id]


class RecordedDecisions:
    """`DecisionSink`."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []

    async def publish_decision(self, decision: Decision) -> None:
        self.decisions.append(decision)
