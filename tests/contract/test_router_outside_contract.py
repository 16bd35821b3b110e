"""The router's ports to NATS: what it relies on, over the fakes and over NATS."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Protocol
from uuid import uuid4

import pytest
from msgspec.structs import replace
from nats.aio.client import Client
from support.placement_case import round_card, segment_hash
from support.router_outside import FakeEventFeed, FakeStateSource, RecordedDecisions, event_message
from support.router_world import body_of, decide, new_state, state_of

from nebula_nats.connection import connect, flush
from nebula_nats.event_publisher import EventPublisher
from nebula_protocol.codec import decode
from nebula_protocol.events import Decision, Envelope, SegmentEntry
from nebula_protocol.ids import DomainId, Origin, RequestId, WorkerId
from nebula_protocol.messages import FetchReply, PeerReply, PeerRequest, SetSplit, StateChunk
from nebula_protocol.subjects import Topic, event_subject
from nebula_router.adapters.nats.decision_sink import NatsDecisionSink
from nebula_router.adapters.nats.event_feed import NatsEventFeed
from nebula_router.adapters.nats.state_source import NatsStateSource
from nebula_router.errors import WorkerGoneError
from nebula_router.ports import DecisionSink, EventFeed, StateSource
from pic_worker.adapters.nats.server import NatsServer

# Dynamo's ids use all 64 bits.
ONE, TWO, NOBODY = WorkerId(2**64 - 3), WorkerId(5), WorkerId(6)
TIMEOUT_S = 10.0
NUM_CHUNKS = 20


class Outside(Protocol):
    """The ports, and the other side of them."""

    states: StateSource
    feed: EventFeed
    decisions: DecisionSink
    namespace: str

    async def give_state(self, chunks: Sequence[StateChunk]) -> None: ...

    async def publish(self, subject: str, data: bytes) -> None: ...

    async def published(self, num_decisions: int) -> list[Decision]: ...


class FakeOutside:
    def __init__(self) -> None:
        self.namespace = "fake"
        self._states, self._feed, self._decisions = FakeStateSource(), FakeEventFeed(), RecordedDecisions()
        self.states: StateSource = self._states
        self.feed: EventFeed = self._feed
        self.decisions: DecisionSink = self._decisions

    async def give_state(self, chunks: Sequence[StateChunk]) -> None:
        self._states.give(chunks)

    async def publish(self, subject: str, data: bytes) -> None:
        self._feed.put(subject, data)

    async def published(self, num_decisions: int) -> list[Decision]:
        return self._decisions.decisions[:num_decisions]


class OnlyState:
    """A worker that nobody asks for anything else."""

    def __init__(self) -> None:
        self.chunks: Sequence[StateChunk] = ()

    def state_chunks(self) -> Sequence[StateChunk]:
        return self.chunks

    async def answer_peer(self, request: PeerRequest) -> PeerReply:
        return FetchReply(epoch=self.chunks[0].card.epoch, segments=())

    def set_split(self, control: SetSplit) -> None:
        raise NotImplementedError


class NatsOutside:
    """The router has one connection, the workers and the readers of decisions another."""

    def __init__(self, namespace: str, router: Client, others: Client, feed: EventFeed) -> None:
        self.namespace = namespace
        self.feed = feed
        self.states: StateSource = NatsStateSource(router, namespace)
        publisher = EventPublisher(
            router, namespace=namespace, component="router", topic=Topic.DECISIONS, publisher_id=7
        )
        self.decisions: DecisionSink = NatsDecisionSink(publisher)
        self._others = others
        self._workers: dict[WorkerId, OnlyState] = {}
        self._payloads: asyncio.Queue[bytes] = asyncio.Queue()

    @classmethod
    async def open(cls, url: str, stack: AsyncExitStack) -> "NatsOutside":
        router, others = await connect(url, "router"), await connect(url, "others")
        stack.push_async_callback(router.close)
        stack.push_async_callback(others.close)
        namespace = uuid4().hex
        outside = cls(namespace, router, others, await NatsEventFeed.subscribe(router, namespace))
        await outside._read_decisions()
        return outside

    async def _read_decisions(self) -> None:
        async def keep(message: object) -> None:
            self._payloads.put_nowait(message.data)  # type: ignore[attr-defined]

        await self._others.subscribe(event_subject(self.namespace, "router", "generate", Topic.DECISIONS), cb=keep)
        await flush(self._others)

    async def give_state(self, chunks: Sequence[StateChunk]) -> None:
        worker_id = chunks[0].card.worker_id
        if worker_id not in self._workers:
            self._workers[worker_id] = OnlyState()
            await NatsServer(self._others, self.namespace, worker_id, self._workers[worker_id]).start()
        self._workers[worker_id].chunks = chunks

    async def publish(self, subject: str, data: bytes) -> None:
        await self._others.publish(subject, data)

    async def published(self, num_decisions: int) -> list[Decision]:
        payloads = [await self._payloads.get() for _ in range(num_decisions)]
        return [decode(decode(payload, Envelope).payload, Decision) for payload in payloads]


@pytest.fixture(params=["fake", pytest.param("nats", marks=pytest.mark.integration)])
async def outside(request: pytest.FixtureRequest) -> AsyncIterator[Outside]:
    if request.param == "fake":
        yield FakeOutside()
        return
    async with AsyncExitStack() as stack:
        yield await NatsOutside.open(request.getfixturevalue("nats_url"), stack)


def long_state(worker_id: WorkerId, num_chunks: int = NUM_CHUNKS) -> list[StateChunk]:
    """A segment a chunk."""
    (whole,) = state_of(round_card(worker_id))
    return [
        replace(
            whole,
            index=index,
            last=index == num_chunks - 1,
            segments=(SegmentEntry(segment_hash(index), DomainId("d"), 100, Origin.ALONE),),
        )
        for index in range(num_chunks)
    ]


async def take(feed: EventFeed, num_messages: int) -> list[tuple[str, bytes]]:
    messages: list[tuple[str, bytes]] = []
    async with asyncio.timeout(TIMEOUT_S):
        async for message in feed.messages():
            messages.append(message)
            if len(messages) == num_messages:
                break
    return messages


def a_decision(request_id: str) -> Decision:
    state = new_state(round_card(ONE), round_card(TWO))
    return decide(state, body_of(range(100), annotations=["nebula.spans=[[20,80]]"]), request_id).decision


# ---- StateSource ----


async def test_a_state_comes_whole_and_in_order(outside: Outside) -> None:
    await outside.give_state(long_state(ONE))
    assert list(await outside.states.fetch_state(ONE)) == long_state(ONE)


async def test_workers_that_are_asked_at_once_answer_each_with_its_own(outside: Outside) -> None:
    await outside.give_state(long_state(ONE))
    await outside.give_state(long_state(TWO, 1))
    one, two = await asyncio.gather(outside.states.fetch_state(ONE), outside.states.fetch_state(TWO))
    assert (list(one), list(two)) == (long_state(ONE), long_state(TWO, 1))


async def test_a_worker_that_is_asked_again_answers_as_of_now(outside: Outside) -> None:
    await outside.give_state(long_state(ONE))
    await outside.states.fetch_state(ONE)
    await outside.give_state(long_state(ONE, 2))
    assert list(await outside.states.fetch_state(ONE)) == long_state(ONE, 2)


async def test_a_worker_that_is_not_there_is_gone_at_once(outside: Outside) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        with pytest.raises(WorkerGoneError) as gone:
            await outside.states.fetch_state(NOBODY)
    assert gone.value.worker_id == NOBODY


# ---- EventFeed ----


async def test_messages_come_as_they_were_sent_and_in_order(outside: Outside) -> None:
    sent = [event_message(Topic.PIC_EVENTS, number, outside.namespace) for number in range(500)]
    for message in sent:
        await outside.publish(*message)
    assert await take(outside.feed, len(sent)) == sent


async def test_messages_that_came_before_anyone_read_are_kept(outside: Outside) -> None:
    first = event_message(Topic.KV_EVENTS, "first", outside.namespace)
    second = event_message(Topic.KV_EVENTS, "second", outside.namespace)
    await outside.publish(*first)
    await outside.publish(*second)
    assert await take(outside.feed, 1) == [first]
    assert await take(outside.feed, 1) == [second]


async def test_empty_and_unreadable_messages_are_passed_on(outside: Outside) -> None:
    subject, _ = event_message(Topic.KV_EVENTS, None, outside.namespace)
    for data in (b"", b"\xc1"):
        await outside.publish(subject, data)
    assert await take(outside.feed, 2) == [(subject, b""), (subject, b"\xc1")]


# ---- DecisionSink ----


async def test_decisions_arrive_as_they_were_made_and_in_order(outside: Outside) -> None:
    decisions = [a_decision(RequestId(f"r{number}")) for number in range(5)]
    for decision in decisions:
        await outside.decisions.publish_decision(decision)
    async with asyncio.timeout(TIMEOUT_S):
        assert await outside.published(len(decisions)) == decisions
