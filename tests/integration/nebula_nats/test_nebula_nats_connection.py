"""One way to connect and one envelope, on real servers that come and go."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from structlog.testing import capture_logs
from support.nats_server import NatsServerProcess

from nebula_nats.connection import NatsUnavailableError, connect, flush
from nebula_nats.event_publisher import EventPublisher
from nebula_protocol.codec import decode
from nebula_protocol.events import Envelope
from nebula_protocol.subjects import Topic, event_subject

pytestmark = pytest.mark.integration

TIMEOUT_S = 20


@pytest.fixture
async def client(nats_url: str) -> AsyncIterator[Client]:
    client = await connect(nats_url, "test")
    yield client
    await client.close()


async def answer(message: Msg) -> None:
    await message.respond(b"yes")


def publisher_for(client: Client, namespace: str) -> EventPublisher:
    return EventPublisher(
        client, namespace=namespace, component="prefill", topic=Topic.PIC_EVENTS, publisher_id=2**64 - 1
    )


@pytest.mark.parametrize("url", ["nats://user:secret@127.0.0.1:1", "nats://user:secret@127.0.0.1:none"])
async def test_a_server_that_does_not_answer_is_given_up_without_telling_the_password(url: str) -> None:
    with capture_logs() as logs, pytest.raises(NatsUnavailableError, match=r"127\.0\.0\.1:") as unavailable:
        await connect(url, "test", patience_s=0.2)
    assert "secret" not in str(unavailable.value)
    assert "secret" not in str(logs)


async def test_a_server_that_starts_a_moment_later_is_waited_for(tmp_path: Path) -> None:
    first = NatsServerProcess(tmp_path)
    first.stop()
    connecting = asyncio.create_task(connect(first.url, "test", patience_s=TIMEOUT_S))
    await asyncio.sleep(0.05)
    server = await asyncio.to_thread(NatsServerProcess, tmp_path, urlsplit(first.url).port or 0)
    client = await connecting
    assert client.is_connected
    await client.close()
    server.stop()


async def test_a_client_and_its_subscriptions_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    server = NatsServerProcess(tmp_path)
    client = await connect(server.url, "test")
    came = asyncio.Event()

    async def take(message: Msg) -> None:
        came.set()

    await client.subscribe("x", cb=take)
    server.stop()
    server = await asyncio.to_thread(NatsServerProcess, tmp_path, urlsplit(server.url).port or 0)
    async with asyncio.timeout(TIMEOUT_S):
        while not came.is_set():
            await client.publish("x", b"")
            await asyncio.sleep(0.02)
    await client.close()
    server.stop()


async def test_after_a_flush_the_server_knows_every_subscription(client: Client, nats_url: str) -> None:
    other = await connect(nats_url, "other")
    for _ in range(100):
        subject = uuid4().hex
        for number in range(3):
            await other.subscribe(f"{subject}.{number}", cb=answer)
        await flush(other)
        # Without a subscription this is refused at once.
        assert (await client.request(f"{subject}.2", b"", timeout=TIMEOUT_S)).data == b"yes"
    await other.close()


async def test_events_are_numbered_in_dynamos_envelope_on_the_topics_subject(client: Client) -> None:
    namespace = uuid4().hex
    subscription = await client.subscribe(event_subject(namespace, "prefill", "generate", Topic.PIC_EVENTS))
    publisher = publisher_for(client, namespace)
    for number in range(3):
        await publisher.publish({"number": number})
    envelopes = [decode((await subscription.next_msg(TIMEOUT_S)).data, Envelope) for _ in range(3)]
    assert [envelope.sequence for envelope in envelopes] == [0, 1, 2]
    assert {(envelope.topic, envelope.publisher_id) for envelope in envelopes} == {("pic-events", 2**64 - 1)}
    assert [msgspec.msgpack.decode(envelope.payload) for envelope in envelopes] == [{"number": n} for n in range(3)]


async def test_an_event_that_cannot_be_sent_is_lost_with_a_warning_and_its_number(client: Client) -> None:
    namespace = uuid4().hex
    subscription = await client.subscribe(event_subject(namespace, "prefill", "generate", Topic.PIC_EVENTS))
    publisher = publisher_for(client, namespace)
    with capture_logs() as logs:
        # Servers take 1 MiB a message.
        await publisher.publish(b"x" * 2_000_000)
    await publisher.publish("after")
    assert [(log["event"], log["topic"], log["sequence"]) for log in logs] == [("event_lost", "pic-events", 0)]
    assert decode((await subscription.next_msg(TIMEOUT_S)).data, Envelope).sequence == 1


async def test_a_closed_connection_loses_events_quietly(nats_url: str) -> None:
    client = await connect(nats_url, "test")
    await client.close()
    with capture_logs() as logs:
        await publisher_for(client, "n").publish("late")
    assert [log["event"] for log in logs] == ["event_lost"]
