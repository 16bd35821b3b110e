"""The `Peers` port: what callers rely on, over the fake and over NATS."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Protocol
from uuid import uuid4

import pytest
from support.fake_peers import FakePeers, PeerAnswers

from nebula_nats.connection import connect
from nebula_protocol.ids import DomainId, Origin, RequestId, SegmentHash, WorkerEpoch, WorkerId
from nebula_protocol.messages import (
    FetchedSegment,
    FetchReply,
    FetchRequest,
    PeerReply,
    PeerRequest,
    PromptPulled,
    PullPrompt,
    SetSplit,
    StateChunk,
    WantedSegment,
)
from pic_worker.adapters.nats.peers import NatsPeers
from pic_worker.adapters.nats.server import NatsServer
from pic_worker.errors import PeerGoneError
from pic_worker.ports import Peers

# Dynamo's ids use all 64 bits.
PEER, OTHER_PEER, NOBODY = WorkerId(2**64 - 3), WorkerId(5), WorkerId(6)
PATIENT_S = 10.0
HURRIED_S = 0.05


class PeerNetwork(Protocol):
    """Where a suite finds its workers."""

    peers: Peers

    async def join(self, worker_id: WorkerId, worker: PeerAnswers) -> None: ...

    async def leave(self, worker_id: WorkerId) -> None: ...


class FakeNetwork:
    def __init__(self) -> None:
        self._fake = FakePeers()
        self.peers: Peers = self._fake

    async def join(self, worker_id: WorkerId, worker: PeerAnswers) -> None:
        self._fake.join(worker_id, worker)

    async def leave(self, worker_id: WorkerId) -> None:
        self._fake.leave(worker_id)


class OnlyPeers:
    """A worker that nobody asks for anything else."""

    def __init__(self, worker: PeerAnswers) -> None:
        self.answer_peer = worker.answer_peer

    def state_chunks(self) -> tuple[StateChunk, ...]:
        return ()

    def set_split(self, control: SetSplit) -> None:
        raise NotImplementedError


class NatsNetwork:
    """Each worker has a connection of its own, which ends when it leaves."""

    def __init__(self, url: str, namespace: str, peers: NatsPeers) -> None:
        self.peers: Peers = peers
        self._url = url
        self._namespace = namespace
        self._connections: dict[WorkerId, AsyncExitStack] = {}

    async def join(self, worker_id: WorkerId, worker: PeerAnswers) -> None:
        client = await connect(self._url, f"worker {worker_id}")
        self._connections[worker_id] = AsyncExitStack()
        self._connections[worker_id].push_async_callback(client.close)
        server = NatsServer(client, self._namespace, worker_id, OnlyPeers(worker))
        self._connections[worker_id].push_async_callback(server.stop)
        await server.start()

    async def leave(self, worker_id: WorkerId) -> None:
        await self._connections.pop(worker_id).aclose()

    async def close(self) -> None:
        for worker_id in list(self._connections):
            await self.leave(worker_id)


@pytest.fixture(params=["fake", pytest.param("nats", marks=pytest.mark.integration)])
async def network(request: pytest.FixtureRequest) -> AsyncIterator[PeerNetwork]:
    if request.param == "fake":
        yield FakeNetwork()
        return
    url, namespace = request.getfixturevalue("nats_url"), uuid4().hex
    client = await connect(url, "caller")
    network = NatsNetwork(url, namespace, NatsPeers(client, namespace))
    yield network
    await network.close()
    await client.close()


class Worker:
    """Answers as it is told; keeps what it was asked."""

    def __init__(self, answer: Callable[[PeerRequest], Awaitable[PeerReply]]) -> None:
        self.asked: list[PeerRequest] = []
        self._answer = answer

    async def answer_peer(self, request: PeerRequest) -> PeerReply:
        self.asked.append(request)
        return await self._answer(request)


def always(reply: PeerReply) -> Worker:
    async def answer(request: PeerRequest) -> PeerReply:
        return reply

    return Worker(answer)


def after(event: asyncio.Event, reply: PeerReply) -> Worker:
    async def answer(request: PeerRequest) -> PeerReply:
        await event.wait()
        return reply

    return Worker(answer)


def fetch_of(*segment_hashes: bytes, request_id: str = "r") -> FetchRequest:
    wanted = (WantedSegment(segment_hash=SegmentHash(key), num_tokens=20, join=True) for key in segment_hashes)
    return FetchRequest(
        request_id=RequestId(request_id),
        from_worker=WorkerId(1),
        domain_id=DomainId("d"),
        wait_s=0.5,
        segments=tuple(wanted),
    )


def fetched(num_bytes: int = 80, epoch: int = 7) -> FetchReply:
    """One segment that is there and one that is not."""
    there = FetchedSegment(
        segment_hash=SegmentHash(b"\x00" * 16), token_bytes=b"\xff" * num_bytes, origin=Origin.ALONE, kv_bytes=3_276_800
    )
    absent = FetchedSegment(segment_hash=SegmentHash(b"\xff" * 16), token_bytes=None)
    return FetchReply(epoch=WorkerEpoch(epoch), segments=(there, absent))


PULL = PullPrompt(request_id=RequestId("r"), from_worker=WorkerId(1))
PULLED = PromptPulled(found=True, kv_bytes=5_000_000_000)


async def test_a_fetch_reaches_its_worker_and_the_reply_comes_back_as_it_was(network: PeerNetwork) -> None:
    peer, other = always(fetched()), always(PULLED)
    await network.join(PEER, peer)
    await network.join(OTHER_PEER, other)
    request = fetch_of(b"\x00" * 16, b"\xff" * 16)
    assert await network.peers.fetch(PEER, request, PATIENT_S) == fetched()
    assert (peer.asked, other.asked) == ([request], [])


async def test_a_pull_reaches_its_worker_and_the_reply_comes_back_as_it_was(network: PeerNetwork) -> None:
    peer = always(PULLED)
    await network.join(PEER, peer)
    assert await network.peers.pull_prompt(PEER, PULL, PATIENT_S) == PULLED
    assert peer.asked == [PULL]


async def test_a_long_reply_arrives_whole(network: PeerNetwork) -> None:
    # The token ids of 100,000 tokens, 4 bytes each.
    await network.join(PEER, always(fetched(400_000)))
    assert await network.peers.fetch(PEER, fetch_of(b"\x00" * 16), PATIENT_S) == fetched(400_000)


async def test_a_worker_that_is_not_there_is_gone_at_once(network: PeerNetwork) -> None:
    began_s = time.monotonic()
    with pytest.raises(PeerGoneError) as gone:
        await network.peers.fetch(NOBODY, fetch_of(b"\x00" * 16), PATIENT_S)
    with pytest.raises(PeerGoneError):
        await network.peers.pull_prompt(NOBODY, PULL, PATIENT_S)
    assert gone.value.worker_id == NOBODY
    assert time.monotonic() - began_s < PATIENT_S / 2


async def test_a_worker_that_has_left_is_gone_at_once(network: PeerNetwork) -> None:
    await network.join(PEER, always(fetched()))
    await network.peers.fetch(PEER, fetch_of(b"\x00" * 16), PATIENT_S)
    await network.leave(PEER)
    began_s = time.monotonic()
    with pytest.raises(PeerGoneError):
        await network.peers.fetch(PEER, fetch_of(b"\x00" * 16), PATIENT_S)
    assert time.monotonic() - began_s < PATIENT_S / 2


async def test_a_worker_that_takes_too_long_is_gone_when_the_time_is_over(network: PeerNetwork) -> None:
    await network.join(PEER, after(asyncio.Event(), fetched()))
    began_s = time.monotonic()
    with pytest.raises(PeerGoneError) as gone:
        await network.peers.fetch(PEER, fetch_of(b"\x00" * 16), HURRIED_S)
    with pytest.raises(PeerGoneError):
        await network.peers.pull_prompt(PEER, PULL, HURRIED_S)
    assert gone.value.worker_id == PEER
    assert 2 * HURRIED_S <= time.monotonic() - began_s < PATIENT_S / 2


async def test_a_worker_that_dies_while_it_answers_is_gone_when_the_time_is_over(network: PeerNetwork) -> None:
    worker = after(asyncio.Event(), fetched())
    await network.join(PEER, worker)
    fetching = asyncio.create_task(network.peers.fetch(PEER, fetch_of(b"\x00" * 16), 4 * HURRIED_S))
    while not worker.asked:
        await asyncio.sleep(0.001)
    await network.leave(PEER)
    with pytest.raises(PeerGoneError):
        await fetching


async def test_one_slow_answer_holds_up_no_other_of_the_same_worker(network: PeerNetwork) -> None:
    quick_is_done = asyncio.Event()

    async def answer(request: PeerRequest) -> PeerReply:
        if request.request_id == "slow":
            await quick_is_done.wait()
            return fetched(epoch=1)
        return fetched(epoch=2)

    await network.join(PEER, Worker(answer))
    slow = asyncio.create_task(network.peers.fetch(PEER, fetch_of(b"\x00" * 16, request_id="slow"), PATIENT_S))
    await asyncio.sleep(0)
    quick = await network.peers.fetch(PEER, fetch_of(b"\x00" * 16, request_id="quick"), PATIENT_S)
    quick_is_done.set()
    assert (quick.epoch, (await slow).epoch) == (2, 1)


async def test_a_worker_that_answers_with_something_else_counts_as_gone(network: PeerNetwork) -> None:
    await network.join(PEER, always(PULLED))
    await network.join(OTHER_PEER, always(fetched()))
    with pytest.raises(PeerGoneError):
        await network.peers.fetch(PEER, fetch_of(b"\x00" * 16), PATIENT_S)
    with pytest.raises(PeerGoneError):
        await network.peers.pull_prompt(OTHER_PEER, PULL, PATIENT_S)


async def test_a_caller_that_gives_up_does_not_disturb_those_who_go_on(network: PeerNetwork) -> None:
    release = asyncio.Event()
    worker = after(release, fetched())
    await network.join(PEER, worker)
    calls = [asyncio.create_task(network.peers.fetch(PEER, fetch_of(b"\x00" * 16), PATIENT_S)) for _ in range(2)]
    while len(worker.asked) < 2:
        await asyncio.sleep(0.001)
    calls[0].cancel()
    release.set()
    assert await calls[1] == fetched()
    assert await network.peers.fetch(PEER, fetch_of(b"\x00" * 16), PATIENT_S) == fetched()
    assert calls[0].cancelled()


async def test_many_calls_to_many_workers_get_each_their_own_reply(network: PeerNetwork) -> None:
    for number in range(5):
        await network.join(WorkerId(100 + number), always(fetched(epoch=number)))
    request = fetch_of(b"\x00" * 16)
    calls = [network.peers.fetch(WorkerId(100 + n % 5), request, PATIENT_S) for n in range(50)]
    assert [reply.epoch for reply in await asyncio.gather(*calls)] == [n % 5 for n in range(50)]
