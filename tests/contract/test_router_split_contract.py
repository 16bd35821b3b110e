"""`SplitSink` and `ReviewSink`: workers hear their share, and readers why it is so, over fakes and over NATS."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Protocol
from uuid import uuid4

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from structlog.testing import capture_logs
from support.recorded_splits import RecordedReviews, RecordedSplits

from nebula_nats.connection import connect, flush
from nebula_nats.event_publisher import EventPublisher
from nebula_protocol.codec import decode
from nebula_protocol.events import Envelope, SplitReview, SplitVerdict
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import PeerReply, PeerRequest, SetSplit, StateChunk
from nebula_protocol.subjects import Topic, all_event_subjects
from nebula_router.adapters.nats.review_sink import NatsReviewSink
from nebula_router.adapters.nats.split_sink import NatsSplitSink
from nebula_router.ports import ReviewSink, SplitSink
from pic_worker.adapters.nats.server import NatsServer

# Dynamo's ids use all 64 bits.
ONE, TWO, NOBODY = WorkerId(2**64 - 3), WorkerId(5), WorkerId(6)


class Workers(Protocol):
    """Two of them, and the sink that reaches them."""

    sink: SplitSink

    async def heard(self, worker_id: WorkerId) -> list[float]:
        """By this worker, in order, of all that was sent so far."""
        ...


class FakeWorkers:
    def __init__(self) -> None:
        self._splits = RecordedSplits()
        self.sink: SplitSink = self._splits

    async def heard(self, worker_id: WorkerId) -> list[float]:
        return [ratio for worker, ratio in self._splits.sent if worker == worker_id]


class OnlySplits:
    """A worker that is asked for nothing else."""

    def __init__(self) -> None:
        self.ratios: list[float] = []

    def set_split(self, control: SetSplit) -> None:
        self.ratios.append(control.prefix_ratio)

    def state_chunks(self) -> Sequence[StateChunk]:
        raise NotImplementedError

    async def answer_peer(self, request: PeerRequest) -> PeerReply:
        raise NotImplementedError


class NatsWorkers:
    """The router has one connection, the workers another."""

    def __init__(self, namespace: str, router: Client, others: Client) -> None:
        self.sink: SplitSink = NatsSplitSink(router, namespace)
        self._router = router
        self._others = others
        self._workers = {worker_id: OnlySplits() for worker_id in (ONE, TWO)}

    @classmethod
    async def open(cls, url: str, stack: AsyncExitStack) -> "NatsWorkers":
        router, others = await connect(url, "router"), await connect(url, "others")
        stack.push_async_callback(router.close)
        stack.push_async_callback(others.close)
        namespace = uuid4().hex
        workers = cls(namespace, router, others)
        for worker_id, answers in workers._workers.items():
            await NatsServer(others, namespace, worker_id, answers).start()
        await flush(others)
        return workers

    async def heard(self, worker_id: WorkerId) -> list[float]:
        await flush(self._router)
        # What the server has taken in it sends before it answers; handlers run in tasks of their own.
        await flush(self._others)
        await asyncio.sleep(0.05)
        return self._workers[worker_id].ratios if worker_id in self._workers else []


@pytest.fixture(params=["fake", pytest.param("nats", marks=pytest.mark.integration)])
async def workers(request: pytest.FixtureRequest) -> AsyncIterator[Workers]:
    if request.param == "fake":
        yield FakeWorkers()
        return
    async with AsyncExitStack() as stack:
        yield await NatsWorkers.open(request.getfixturevalue("nats_url"), stack)


async def test_a_worker_hears_what_it_is_told_and_in_order(workers: Workers) -> None:
    for ratio in (0.3, 0.0, 1.0, 0.0625):
        await workers.sink.send_split(ONE, ratio)
    assert await workers.heard(ONE) == [0.3, 0.0, 1.0, 0.0625]


async def test_others_do_not_hear_it(workers: Workers) -> None:
    await workers.sink.send_split(ONE, 0.3)
    await workers.sink.send_split(TWO, 0.4)
    assert await workers.heard(ONE) == [0.3]
    assert await workers.heard(TWO) == [0.4]


async def test_telling_a_worker_that_is_not_there_disturbs_nobody(workers: Workers) -> None:
    await workers.sink.send_split(NOBODY, 0.5)
    await workers.sink.send_split(ONE, 0.3)
    assert await workers.heard(ONE) == [0.3]


@pytest.mark.integration
async def test_on_a_closed_connection_a_split_is_lost_with_a_log_event(nats_url: str) -> None:
    client = await connect(nats_url, "router")
    await client.close()
    with capture_logs() as logs:
        await NatsSplitSink(client, "pool").send_split(ONE, 0.3)
    assert [(log["event"], log["worker_id"]) for log in logs] == [("split_lost", ONE)]


# ---- ReviewSink ----


class Readers(Protocol):
    sink: ReviewSink

    async def read(self) -> list[SplitReview]:
        """All that was published so far, in order."""
        ...


class FakeReaders:
    def __init__(self) -> None:
        self._reviews = RecordedReviews()
        self.sink: ReviewSink = self._reviews

    async def read(self) -> list[SplitReview]:
        return self._reviews.published


class NatsReaders:
    """The router has one connection, the reader another."""

    def __init__(self, namespace: str, router: Client, reader: Client) -> None:
        publisher = EventPublisher(router, namespace=namespace, component="router", topic=Topic.SPLITS, publisher_id=1)
        self.sink: ReviewSink = NatsReviewSink(publisher)
        self._namespace = namespace
        self._router = router
        self._reader = reader
        self._read: list[SplitReview] = []

    async def open(self) -> None:
        async def take(message: Msg) -> None:
            if message.subject.split(".")[1] == self._namespace:
                self._read.append(decode(decode(message.data, Envelope).payload, SplitReview))

        await self._reader.subscribe(all_event_subjects(Topic.SPLITS), cb=take)
        await flush(self._reader)

    async def read(self) -> list[SplitReview]:
        await flush(self._router)
        await flush(self._reader)
        await asyncio.sleep(0.05)
        return self._read


@pytest.fixture(params=["fake", pytest.param("nats", marks=pytest.mark.integration)])
async def readers(request: pytest.FixtureRequest) -> AsyncIterator[Readers]:
    if request.param == "fake":
        yield FakeReaders()
        return
    async with AsyncExitStack() as stack:
        url = request.getfixturevalue("nats_url")
        router, reader = await connect(url, "router"), await connect(url, "reader")
        stack.push_async_callback(router.close)
        stack.push_async_callback(reader.close)
        nats_readers = NatsReaders(uuid4().hex, router, reader)
        await nats_readers.open()
        yield nats_readers


def review(number: int) -> SplitReview:
    return SplitReview(
        verdict=SplitVerdict.MOVED,
        from_prefix_ratio=0.3,
        prefix_ratio=0.25,
        best_from_ratio=0.0,
        best_to_ratio=0.125,
        gain_ratio=0.04,
        error_ratio=0.01,
        window_requests=32,
        num_requests=32 * number,
        ghost_prefix_tokens=128,
        ghost_segment_tokens=4_096,
    )


async def test_readers_get_every_review_as_it_was_and_in_order(readers: Readers) -> None:
    for number in (1, 2, 3):
        await readers.sink.publish_review(review(number))
    assert await readers.read() == [review(number) for number in (1, 2, 3)]
