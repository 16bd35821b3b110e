"""What a worker answers over NATS beside its peers: full state to routers, the split, and messages that are none."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from uuid import uuid4

import pytest
from nats.aio.client import Client
from structlog.testing import capture_logs
from support.worker_net import make_card

from nebula_nats.connection import connect
from nebula_protocol.codec import encode
from nebula_protocol.events import SegmentEntry
from nebula_protocol.ids import DomainId, EventId, Origin, SegmentHash, WorkerEpoch, WorkerId
from nebula_protocol.messages import FetchReply, PeerReply, PeerRequest, SetSplit, StateChunk
from nebula_protocol.subjects import Topic, control_subject, peer_subject, state_subject
from nebula_router.adapters.nats.state_source import NatsStateSource
from pic_worker.adapters.nats.server import NatsServer
from pic_worker.core.event_log import StateSnapshot
from pic_worker.state_chunks import chunk_state

pytestmark = pytest.mark.integration

WORKER = WorkerId(2**64 - 3)
TIMEOUT_S = 10.0
NUM_SEGMENTS = 20_000
SEGMENTS = tuple(
    SegmentEntry(SegmentHash(n.to_bytes(16, "big")), DomainId("0123456789abcdef"), 300, Origin.IN_CONTEXT)
    for n in range(NUM_SEGMENTS)
)


@dataclass
class Answers:
    """A worker with a large state, which keeps the splits that it was told."""

    splits: list[float] = field(default_factory=list)

    async def answer_peer(self, request: PeerRequest) -> PeerReply:
        return FetchReply(epoch=WorkerEpoch(7), segments=())

    def state_chunks(self) -> list[StateChunk]:
        state = StateSnapshot((), SEGMENTS, {Topic.KV_EVENTS: EventId(3), Topic.PIC_EVENTS: EventId(4)})
        return list(chunk_state(state, make_card(WORKER), snapshot_id=1))

    def set_split(self, control: SetSplit) -> None:
        self.splits.append(control.prefix_ratio)


@dataclass(frozen=True, slots=True)
class Served:
    client: Client
    namespace: str
    answers: Answers

    async def send(self, subject: Callable[[str, WorkerId], str], data: bytes) -> None:
        await self.client.publish(subject(self.namespace, WORKER), data)

    async def fetch_state(self) -> list[StateChunk]:
        return list(await NatsStateSource(self.client, self.namespace).fetch_state(WORKER))

    async def splits(self, num_splits: int) -> list[float]:
        """Those that came, once there are so many."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(self.answers.splits) < num_splits:
                await asyncio.sleep(0.001)
        return self.answers.splits


@pytest.fixture
async def served(nats_url: str) -> AsyncIterator[Served]:
    client, worker_client = await connect(nats_url, "router"), await connect(nats_url, "worker")
    served = Served(client, uuid4().hex, Answers())
    await NatsServer(worker_client, served.namespace, WORKER, served.answers).start()
    yield served
    await client.close()
    await worker_client.close()


async def test_a_router_gets_the_whole_state_in_order(served: Served) -> None:
    chunks = await served.fetch_state()
    assert len(chunks) > 1
    assert [segment for chunk in chunks for segment in chunk.segments] == list(SEGMENTS)
    assert chunks[-1].last
    assert chunks[0].card == make_card(WORKER)


async def test_two_routers_that_ask_at_once_get_each_the_whole_state(served: Served) -> None:
    states = await asyncio.gather(served.fetch_state(), served.fetch_state())
    assert [sum(len(chunk.segments) for chunk in state) for state in states] == [NUM_SEGMENTS, NUM_SEGMENTS]


async def test_a_split_arrives_and_one_that_is_no_share_is_refused(served: Served) -> None:
    with capture_logs() as logs:
        for prefix_ratio in (0.25, 1.5, -0.1, float("nan"), 1.0):
            await served.send(control_subject, encode(SetSplit(prefix_ratio=prefix_ratio)))
        assert await served.splits(2) == [0.25, 1.0]
    assert [log["event"] for log in logs] == ["message_unreadable"] * 3


@pytest.mark.parametrize("subject", [peer_subject, state_subject, control_subject])
async def test_a_message_that_cannot_be_read_is_logged_and_the_worker_goes_on(
    served: Served, subject: Callable[[str, WorkerId], str]
) -> None:
    with capture_logs() as logs:
        for junk in (b"", b"\xc1", encode({"request": {"type": "gossip"}, "version": "one"}), encode([1, 2])):
            await served.send(subject, junk)
        await served.send(control_subject, encode(SetSplit(prefix_ratio=0.5)))
        assert await served.splits(1) == [0.5]
        assert len(await served.fetch_state()) > 1
    assert {log["event"] for log in logs} == {"message_unreadable"}
    assert {log["subject"] for log in logs} >= {subject(served.namespace, WORKER)}


async def test_a_request_without_a_reply_subject_harms_nobody(served: Served) -> None:
    with capture_logs():
        await served.send(state_subject, encode({"version": 1}))
        assert len(await served.fetch_state()) > 1
