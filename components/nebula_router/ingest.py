"""The write path: workers' events into the view, and full states for new, restarted or gapped workers."""

import asyncio

import structlog

from nebula_protocol.codec import decode
from nebula_protocol.errors import DecodeError
from nebula_protocol.events import Envelope, WorkerKvEvent, WorkerPicEvents
from nebula_protocol.ids import WorkerId
from nebula_protocol.subjects import Topic, topic_of
from nebula_router.core.evidence import Applied
from nebula_router.core.holders import TooManyWorkersError
from nebula_router.decide import RouterState
from nebula_router.errors import WorkerGoneError
from nebula_router.metrics import RouterMetrics
from nebula_router.ports import Clock, EventFeed, StateSource, WorkerPool

log = structlog.get_logger()

_MEMBERSHIP_PERIOD_S = 0.1
_RETRY_STATE_S = 1.0


class Ingest:
    """Two loops: events as they come, and membership with repair."""

    def __init__(
        self,
        *,
        state: RouterState,
        feed: EventFeed,
        states: StateSource,
        prefill_pool: WorkerPool,
        metrics: RouterMetrics,
        clock: Clock,
    ) -> None:
        self._state = state
        self._feed = feed
        self._states = states
        self._pool = prefill_pool
        self._metrics = metrics
        self._clock = clock
        self._fetching: dict[WorkerId, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._consume())
                tasks.create_task(self._watch())
        finally:
            for fetching in self._fetching.values():
                fetching.cancel()

    async def _consume(self) -> None:
        async for subject, data in self._feed.messages():
            try:
                self._apply(subject, data)
            except DecodeError as error:
                log.warning("event_unreadable", subject=subject, error=str(error))
            except Exception:
                # One odd message must not end the router, and with it every request that it serves.
                log.exception("event_failed", subject=subject)

    def _apply(self, subject: str, data: bytes) -> None:
        topic = topic_of(subject)
        payload = decode(data, Envelope).payload
        now_s = self._clock()
        if topic is Topic.KV_EVENTS:
            applied = self._state.apply_kv_events(decode(payload, list[WorkerKvEvent]), now_s)
        elif topic is Topic.PIC_EVENTS:
            applied = self._state.apply_pic_events(decode(payload, WorkerPicEvents), now_s)
        else:
            return
        self._metrics.count_events(topic)
        self._report_gaps(applied)

    def _report_gaps(self, applied: Applied) -> None:
        """Gaps are repaired by the membership loop, which asks the view who needs a state."""
        for gap in applied.gaps:
            self._metrics.count_gap(gap.topic, gap.reason)
            log.info(
                "event_gap_found", worker_id=gap.worker_id, topic=gap.topic, reason=gap.reason, got_event_id=gap.got
            )

    async def _watch(self) -> None:
        while True:
            self._compare_members()
            view = self._state.view
            self._metrics.set_index_size(
                num_blocks=view.num_blocks, num_segments=view.num_segments, num_workers=view.num_workers
            )
            await asyncio.sleep(_MEMBERSHIP_PERIOD_S)

    def _compare_members(self) -> None:
        live = self._pool.live_workers()
        known = self._state.view.worker_ids()
        for worker_id in known - live:
            log.info("worker_left", worker_id=worker_id)
            self._state.remove_worker(worker_id)
            if worker_id in self._fetching:
                self._fetching[worker_id].cancel()
        for worker_id in (live - known) | (self._state.view.needs_state() & live):
            if worker_id not in self._fetching:
                self._fetching[worker_id] = asyncio.create_task(self._repair(worker_id))

    async def _repair(self, worker_id: WorkerId) -> None:
        """Takes over a worker's full state; leaves it for the next round when the worker does not answer."""
        try:
            self._state.view.begin_state(worker_id)
            chunks = await self._states.fetch_state(worker_id)
            self._report_gaps(self._state.apply_state(chunks, self._clock()))
        except (WorkerGoneError, TooManyWorkersError, DecodeError) as error:
            log.info("state_not_fetched", worker_id=worker_id, reason=str(error))
            await self._wait_for_retry()
        except Exception:
            log.exception("state_failed", worker_id=worker_id)
            await self._wait_for_retry()
        else:
            self._metrics.count_state_fetch("ok")
            log.info(
                "state_fetched",
                worker_id=worker_id,
                num_blocks=sum(len(chunk.blocks) for chunk in chunks),
                num_segments=sum(len(chunk.segments) for chunk in chunks),
            )
        finally:
            del self._fetching[worker_id]

    async def _wait_for_retry(self) -> None:
        self._metrics.count_state_fetch("failed")
        await asyncio.sleep(_RETRY_STATE_S)
