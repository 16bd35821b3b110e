"""The router's NATS adapters on a real server: broken answers, foreign subjects, overflow, a lost server."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from msgspec.structs import replace
from nats.aio.client import Client
from nats.aio.msg import Msg
from support.nats_server import NatsServerProcess
from support.placement_case import round_card
from support.router_outside import event_message
from support.router_world import body_of, decide, new_state, state_of

from nebula_nats.connection import connect, flush
from nebula_nats.event_publisher import EventPublisher
from nebula_protocol.codec import decode, encode
from nebula_protocol.events import Decision, Envelope
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import StateChunk, StateRequest
from nebula_protocol.subjects import Topic, event_subject, state_subject
from nebula_router.adapters.nats.decision_sink import NatsDecisionSink
from nebula_router.adapters.nats.event_feed import NatsEventFeed
from nebula_router.adapters.nats.state_source import NatsStateSource
from nebula_router.errors import WorkerGoneError

pytestmark = pytest.mark.integration

WORKER = WorkerId(2**64 - 3)
HURRIED_S = 0.2
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Sides:
    """The router's connection, and that of everybody else."""

    namespace: str
    router: Client
    others: Client


@pytest.fixture
async def sides(nats_url: str) -> AsyncIterator[Sides]:
    async with AsyncExitStack() as stack:
        router, others = await connect(nats_url, "router"), await connect(nats_url, "others")
        stack.push_async_callback(router.close)
        stack.push_async_callback(others.close)
        yield Sides(uuid4().hex, router, others)


async def next_message(feed: NatsEventFeed) -> tuple[str, bytes]:
    async with asyncio.timeout(TIMEOUT_S):
        return await anext(aiter(feed.messages()))


# ---- NatsStateSource ----


async def answer_with(sides: Sides, *answers: bytes, pause_s: float = 0.0) -> list[bytes]:
    """A worker that answers with these, after a pause each. Returns what it is asked."""
    asked: list[bytes] = []

    async def answer(message: Msg) -> None:
        asked.append(message.data)
        for data in answers:
            await asyncio.sleep(pause_s)
            await message.respond(data)

    await sides.others.subscribe(state_subject(sides.namespace, WORKER), cb=answer)
    await flush(sides.others)
    return asked


async def fetch(sides: Sides) -> Sequence[StateChunk]:
    return await NatsStateSource(sides.router, sides.namespace, chunk_timeout_s=HURRIED_S).fetch_state(WORKER)


async def failure_of(sides: Sides) -> str:
    with pytest.raises(WorkerGoneError) as gone:
        await fetch(sides)
    assert gone.value.worker_id == WORKER
    return str(gone.value)


def chunk(index: int, *, last: bool = False, snapshot_id: int = 1) -> StateChunk:
    (whole,) = state_of(round_card(WORKER))
    return replace(whole, index=index, last=last, snapshot_id=snapshot_id)


async def test_the_worker_is_asked_once_and_its_chunks_end_with_the_last(sides: Sides) -> None:
    chunks = [chunk(0), chunk(1, last=True)]
    asked = await answer_with(sides, *map(encode, chunks), encode(chunk(2)))
    assert list(await fetch(sides)) == chunks
    assert [decode(data, StateRequest) for data in asked] == [StateRequest()]


async def test_each_chunk_has_the_whole_time(sides: Sides) -> None:
    chunks = [chunk(index, last=index == 3) for index in range(4)]
    # 4 * 0.12 s are more than 0.2 s.
    await answer_with(sides, *map(encode, chunks), pause_s=0.6 * HURRIED_S)
    assert list(await fetch(sides)) == chunks


@pytest.mark.parametrize("answers", [(), (encode(chunk(0)),)], ids=["no chunk", "one chunk"])
async def test_a_worker_that_falls_silent_is_gone_when_the_time_is_over(
    sides: Sides, answers: tuple[bytes, ...]
) -> None:
    await answer_with(sides, *answers)
    began_s = time.monotonic()
    assert "no full state" in await failure_of(sides)
    assert HURRIED_S <= time.monotonic() - began_s < TIMEOUT_S / 2


async def test_nobody_at_all_is_told_from_silence(sides: Sides) -> None:
    began_s = time.monotonic()
    assert "nobody answers for its state" in await failure_of(sides)
    assert time.monotonic() - began_s < HURRIED_S


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ((chunk(1),), "chunk 1 of snapshot 1 came where 0 was due"),
        ((chunk(0), chunk(2)), "chunk 2 of snapshot 1 came where 1 was due"),
        ((chunk(0), chunk(0)), "chunk 0 of snapshot 1 came where 1 was due"),
        ((chunk(0), chunk(1, snapshot_id=2)), "chunk 1 of snapshot 2 came where 1 was due"),
    ],
)
async def test_chunks_out_of_order_are_no_state(sides: Sides, answers: tuple[StateChunk, ...], reason: str) -> None:
    await answer_with(sides, *map(encode, answers))
    assert reason in await failure_of(sides)


async def test_an_unreadable_chunk_is_no_state(sides: Sides) -> None:
    await answer_with(sides, encode(chunk(0)), b"\xc1")
    assert "its state cannot be read: not a StateChunk" in await failure_of(sides)


async def test_a_closed_connection_is_a_worker_that_cannot_be_reached(sides: Sides) -> None:
    await sides.router.close()
    assert "no full state" in await failure_of(sides)


async def test_answers_to_a_fetch_that_was_given_up_do_not_reach_the_next(sides: Sides) -> None:
    await answer_with(sides, encode(chunk(0)), encode(chunk(1, last=True)), pause_s=0.6 * HURRIED_S)
    first = asyncio.create_task(fetch(sides))
    await asyncio.sleep(0.9 * HURRIED_S)
    first.cancel()
    assert [one.index for one in await fetch(sides)] == [0, 1]


# ---- NatsEventFeed ----


async def test_both_topics_of_all_components_of_the_namespace_come_and_nothing_else(sides: Sides) -> None:
    feed = await NatsEventFeed.subscribe(sides.router, sides.namespace)
    wanted = [
        event_subject(sides.namespace, component, "generate", topic)
        for component in ("prefill", "other")
        for topic in (Topic.KV_EVENTS, Topic.PIC_EVENTS)
    ]
    foreign = [
        event_subject(f"{sides.namespace}2", "prefill", "generate", Topic.KV_EVENTS),
        event_subject(sides.namespace, "router", "generate", Topic.DECISIONS),
        f"namespace.{sides.namespace}.component.prefill.endpoint.generate.kv_metrics",
    ]
    for subject in (*foreign, *wanted):
        await sides.others.publish(subject, b"x")
    assert {(await next_message(feed))[0] for _ in wanted} == set(wanted)


async def test_of_too_many_unread_messages_the_oldest_are_lost(sides: Sides) -> None:
    feed = await NatsEventFeed.subscribe(sides.router, sides.namespace, max_pending=3)
    sent = [event_message(Topic.PIC_EVENTS, number, sides.namespace) for number in range(10)]
    for message in sent:
        await sides.others.publish(*message)
    await flush(sides.others)
    await flush(sides.router)
    # Until the client's own task has handed all of them on.
    await asyncio.sleep(0.05)
    assert [await next_message(feed) for _ in range(3)] == sent[-3:]


async def test_events_come_again_after_the_server_was_away(tmp_path: Path) -> None:
    server = NatsServerProcess(tmp_path)
    async with AsyncExitStack() as stack:
        router = await connect(server.url, "router")
        stack.push_async_callback(router.close)
        feed = await NatsEventFeed.subscribe(router, "pool")
        server.stop()
        port = urlsplit(server.url).port
        assert port is not None
        (tmp_path / "again").mkdir()
        server = NatsServerProcess(tmp_path / "again", port)
        stack.callback(server.stop)
        others = await connect(server.url, "others")
        stack.push_async_callback(others.close)
        message = event_message(Topic.KV_EVENTS, "after", "pool")
        received = asyncio.create_task(next_message(feed))
        while not received.done():
            await others.publish(*message)
            await asyncio.sleep(0.05)
        assert received.result() == message


# ---- NatsDecisionSink ----


def a_decision(request_id: str) -> Decision:
    state = new_state(round_card(1), round_card(2))
    return decide(state, body_of(range(100), annotations=["nebula.spans=[[20,80]]"]), request_id).decision


def sink_of(sides: Sides) -> NatsDecisionSink:
    return NatsDecisionSink(
        EventPublisher(
            sides.router, namespace=sides.namespace, component="router", topic=Topic.DECISIONS, publisher_id=7
        )
    )


async def test_decisions_are_numbered_in_dynamos_envelope(sides: Sides) -> None:
    subscription = await sides.others.subscribe(event_subject(sides.namespace, "router", "generate", Topic.DECISIONS))
    await flush(sides.others)
    sink = sink_of(sides)
    decisions = [a_decision("first"), a_decision("second")]
    for decision in decisions:
        await sink.publish_decision(decision)
    messages = [await subscription.next_msg(timeout=TIMEOUT_S) for _ in decisions]
    envelopes = [decode(message.data, Envelope) for message in messages]
    assert [(one.publisher_id, one.sequence, one.topic) for one in envelopes] == [
        (7, 0, "decisions"),
        (7, 1, "decisions"),
    ]
    assert [decode(one.payload, Decision) for one in envelopes] == decisions


async def test_a_decision_that_cannot_be_published_harms_nobody(sides: Sides) -> None:
    sink = sink_of(sides)
    await sides.router.close()
    await sink.publish_decision(a_decision("lost"))
