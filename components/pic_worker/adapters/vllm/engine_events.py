"""The worker's account of what its engine holds: events in order, the full state, and the facts of prefills."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import structlog
from msgspec import structs

from nebula_protocol.card import WorkerCard
from nebula_protocol.events import (
    HostBlocksRemoved,
    HostBlocksStored,
    PicEvent,
    PicEventData,
    SegmentStored,
    WorkerPicEvents,
)
from nebula_protocol.ids import EventId, Origin, RequestId
from nebula_protocol.subjects import Topic
from pic_worker.adapters.vllm.block_event_wire import AllBlocksCleared, BlockEventBatch, block_name
from pic_worker.adapters.vllm.device_blocks import DeviceBlocks
from pic_worker.adapters.vllm.engine_feed import EngineFeed
from pic_worker.adapters.vllm.engine_wire import EngineNews, PrefillFacts, SplitControl
from pic_worker.core.event_log import EventLog, StateSnapshot
from pic_worker.core.state_mirror import StateMirror
from pic_worker.core.store_entry import SegmentKey
from pic_worker.metrics import WorkerMetrics
from pic_worker.ports import BlockEvents, SegmentEvents
from pic_worker.segment_arrivals import SegmentArrivals

log = structlog.get_logger()


class EngineEvents:
    """Reads both feeds of the engine, and publishes what they say under consecutive numbers."""

    def __init__(
        self,
        *,
        feed: EngineFeed,
        mirror: StateMirror,
        event_log: EventLog,
        device_blocks: DeviceBlocks,
        block_events: BlockEvents,
        metrics: WorkerMetrics,
        arrivals: SegmentArrivals,
    ) -> None:
        self._feed = feed
        self._mirror = mirror
        self._log = event_log
        self._device_blocks = device_blocks
        self._block_events = block_events
        self._metrics = metrics
        self._arrivals = arrivals
        self._expected: dict[RequestId, asyncio.Future[PrefillFacts]] = {}
        self._outbox: asyncio.Queue[tuple[PicEvent, ...]] = asyncio.Queue()
        self._batches: AsyncIterator[BlockEventBatch | None] = feed.block_events()
        self._controls: asyncio.Queue[SplitControl] = asyncio.Queue()

    # ---- reading ----

    async def await_cleared(self) -> None:
        """Passes over everything up to the event that says that the prefix cache is empty."""
        async for batch in self._batches:
            if batch is not None and any(isinstance(event, AllBlocksCleared) for event in batch.events):
                return

    async def run(self, card: WorkerCard, segment_events: SegmentEvents) -> None:
        """Until cancelled.

        Raises:
            msgspec.MsgspecError: the engine speaks another version.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._read_news())
            tasks.create_task(self._read_block_events())
            tasks.create_task(self._publish_segment_events(card, segment_events))
            tasks.create_task(self._send_controls())

    async def _read_news(self) -> None:
        async for news in self._feed.news():
            self.apply_news(news)

    async def _read_block_events(self) -> None:
        async for batch in self._batches:
            if batch is None:
                # What was lost may have been removals: nothing is claimed that may be gone.
                self._device_blocks.clear()
            else:
                self._device_blocks.apply(batch)
            self._publish()

    def apply_news(self, news: EngineNews) -> None:
        for data in news.events:
            named = _with_names(data)
            self._mirror.apply(named)
            self._log.record_pic(named)
            if isinstance(data, SegmentStored):
                self._arrivals.stored(SegmentKey(data.domain_id, data.segment_hash))
        # Before the facts, so that a receipt's last event numbers hold these events.
        self._publish()
        for facts in news.finished:
            future = self._expected.get(facts.request_id)
            if future is not None and not future.done():
                future.set_result(facts)
        if news.step is not None:
            self._metrics.observe_engine_step(
                news.step.duration_s, news.step.num_tokens, recomputed_tokens=news.step.recomputed_tokens
            )

    # ---- publishing ----

    def _publish(self) -> None:
        pic_events: list[PicEvent] = []
        for event in self._log.drain():
            if isinstance(event, PicEvent):
                pic_events.append(event)
            else:
                self._block_events.publish(event)
        if pic_events:
            self._outbox.put_nowait(tuple(pic_events))

    async def _publish_segment_events(self, card: WorkerCard, segment_events: SegmentEvents) -> None:
        """One task, so that events leave in order."""
        while True:
            events = await self._outbox.get()
            await segment_events.publish(WorkerPicEvents(worker_id=card.worker_id, epoch=card.epoch, events=events))

    # ---- for the service ----

    @contextmanager
    def expect_facts(self, request_id: RequestId) -> Iterator["asyncio.Future[PrefillFacts]"]:
        """A future of the prefill's facts, inside."""
        future: asyncio.Future[PrefillFacts] = asyncio.get_running_loop().create_future()
        self._expected[request_id] = future
        try:
            yield future
        finally:
            del self._expected[request_id]
            future.cancel()

    def last_event_ids(self) -> dict[Topic, EventId]:
        return self._log.last_event_ids()

    def origin_of(self, key: SegmentKey) -> Origin | None:
        """Of a segment in the store, as far as it is told; None for one that is not there."""
        return self._mirror.origin_of(key.domain_id, key.segment_hash)

    def state(self) -> StateSnapshot:
        """All that both tiers hold, as far as it is told."""
        return StateSnapshot(self._mirror.blocks(), self._mirror.segments(), self._log.last_event_ids())

    def set_split(self, prefix_ratio: float) -> None:
        self._controls.put_nowait(SplitControl(prefix_ratio=prefix_ratio))

    async def _send_controls(self) -> None:
        while True:
            await self._feed.control(await self._controls.get())


def _with_names(data: PicEventData) -> PicEventData:
    """Blocks named as in this worker's block events."""
    match data:
        case HostBlocksStored() | HostBlocksRemoved():
            return structs.replace(data, block_hashes=tuple(map(block_name, data.block_hashes)))
        case _:
            return data
