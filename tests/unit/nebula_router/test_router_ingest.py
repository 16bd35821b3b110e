"""The write path in virtual time: members, full states, events, gaps."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from support.placement_case import round_card
from support.router_outside import FakeEventFeed, FakeStateSource
from support.router_worker_pool import FakeWorkerPool
from support.router_world import known_workers, metric_value, new_state, state_of
from support.view_world import Publisher, entry
from support.virtual_time import now_s

from nebula_protocol.errors import DecodeError
from nebula_protocol.ids import WorkerId
from nebula_protocol.subjects import Topic
from nebula_router.decide import RouterState
from nebula_router.errors import WorkerGoneError
from nebula_router.ingest import Ingest
from nebula_router.metrics import MetricName, RouterMetrics

PERIOD_S = 0.1
"""Between two looks at the members."""
RETRY_S = 1.0
GONE = WorkerGoneError(WorkerId(1), "no answer")


@dataclass(slots=True)
class IngestWorld:
    state: RouterState
    feed: FakeEventFeed
    states: FakeStateSource
    pool: FakeWorkerPool
    metrics: RouterMetrics
    faults: list[Exception]
    """Of the clock, one a look."""

    def clock(self) -> float:
        if self.faults:
            raise self.faults.pop()
        return now_s()

    @property
    def num_segments(self) -> int:
        return self.state.view.num_segments

    def metric(self, name: MetricName, **labels: str) -> float | None:
        return metric_value(self.metrics, name, **labels)


@asynccontextmanager
async def ingesting(*worker_ids: int, max_workers: int = 8) -> AsyncIterator[IngestWorld]:
    """Workers that discovery lists, and that answer with an empty state."""
    world = IngestWorld(
        state=new_state(max_workers=max_workers),
        feed=FakeEventFeed(),
        states=FakeStateSource(),
        pool=FakeWorkerPool(lambda worker_id, request: [], *worker_ids),
        metrics=RouterMetrics(),
        faults=[],
    )
    for worker_id in worker_ids:
        world.states.give(state_of(round_card(worker_id)))
    ingest = Ingest(
        state=world.state,
        feed=world.feed,
        states=world.states,
        prefill_pool=world.pool,
        metrics=world.metrics,
        clock=world.clock,
    )
    running = asyncio.create_task(ingest.run())
    try:
        yield world
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def rounds(count: float = 1) -> None:
    """Until the members have been looked at so often, and what followed has been done."""
    await asyncio.sleep(count * PERIOD_S + PERIOD_S / 2)


async def test_a_new_worker_is_asked_for_its_state_which_is_applied() -> None:
    async with ingesting(1, 2) as world:
        world.states.give(Publisher(1).state(blocks=[entry(5, None)], segments=["s"]))
        await rounds()
        assert (known_workers(world.state), world.state.view.num_blocks, world.num_segments) == ({1, 2}, 1, 1)
        assert sorted(world.states.asked) == [1, 2]
        assert world.metric(MetricName.STATE_FETCHES, result="ok") == 2
        await rounds()
        assert world.metric(MetricName.INDEX_ENTRIES, kind="block") == 1
        assert world.metric(MetricName.INDEX_ENTRIES, kind="segment") == 1
        assert world.metric(MetricName.WORKERS) == 2


async def test_a_known_worker_is_not_asked_again() -> None:
    async with ingesting(1) as world:
        await rounds(20)
        assert world.states.asked == [1]


async def test_a_worker_that_joins_later_is_seen_at_the_next_look() -> None:
    async with ingesting(1) as world:
        await rounds()
        world.states.give(state_of(round_card(2)))
        world.pool.join(2)
        await rounds()
        assert known_workers(world.state) == {1, 2}


async def test_a_worker_that_leaves_is_removed_with_all_that_it_had() -> None:
    async with ingesting(1, 2) as world:
        world.states.give(Publisher(1).state(segments=["s"]))
        await rounds()
        world.pool.leave(1)
        await rounds()
        assert (known_workers(world.state), world.num_segments) == ({2}, 0)


async def test_a_state_that_comes_after_its_worker_has_left_is_not_taken() -> None:
    async with ingesting(1) as world:
        may_answer = world.states.hold(1)
        await rounds()
        world.pool.leave(1)
        await rounds()
        may_answer.set()
        await asyncio.sleep(PERIOD_S / 4)
        assert known_workers(world.state) == set()


async def test_a_worker_that_the_router_lost_is_asked_anew_and_used_again_if_it_answers() -> None:
    async with ingesting(1) as world:
        await rounds()
        world.state.remove_worker(WorkerId(1))
        await rounds()
        assert known_workers(world.state) == {1}
        assert world.states.asked == [1, 1]


@pytest.mark.parametrize("error", [GONE, DecodeError("odd"), RuntimeError("a fault of ours")])
async def test_a_state_that_cannot_be_had_is_asked_again_a_second_later(error: Exception) -> None:
    async with ingesting(1) as world:
        world.states.fail(1, error, error)
        await rounds()
        assert (known_workers(world.state), len(world.states.asked)) == (set(), 1)
        assert world.metric(MetricName.STATE_FETCHES, result="failed") == 1
        await asyncio.sleep(2 * (RETRY_S + PERIOD_S))
        assert (known_workers(world.state), len(world.states.asked)) == ({1}, 3)
        assert world.metric(MetricName.STATE_FETCHES, result="failed") == 2


async def test_one_silent_worker_holds_up_no_other() -> None:
    async with ingesting(1, 2) as world:
        world.states.hold(1)
        await rounds(5)
        assert known_workers(world.state) == {2}
        # And is asked only once at a time.
        assert sorted(world.states.asked) == [1, 2]


async def test_a_worker_for_which_there_is_no_room_is_asked_again_until_there_is() -> None:
    async with ingesting(1, max_workers=1) as world:
        await rounds()
        world.states.give(state_of(round_card(2)))
        world.pool.join(2)
        await rounds()
        assert known_workers(world.state) == {1}
        world.pool.leave(1)
        await asyncio.sleep(RETRY_S + 2 * PERIOD_S)
        assert known_workers(world.state) == {2}


# ---- events ----


async def test_events_of_both_topics_reach_the_view() -> None:
    async with ingesting(1) as world:
        await rounds()
        publisher = Publisher(1)
        world.feed.publish(Topic.KV_EVENTS, [publisher.stored([5, 6])])
        world.feed.publish(Topic.PIC_EVENTS, publisher.segment_stored("s"))
        await asyncio.sleep(0.001)
        assert (world.state.view.num_blocks, world.num_segments) == (2, 1)
        assert world.metric(MetricName.EVENTS, topic="kv-events") == 1
        assert world.metric(MetricName.EVENTS, topic="pic-events") == 1


async def test_decisions_and_other_topics_are_passed_over() -> None:
    async with ingesting(1) as world:
        await rounds()
        world.feed.publish(Topic.DECISIONS, {"any": "thing"})
        world.feed.put("namespace.pool.component.prefill.endpoint.generate.kv_metrics", b"")
        world.feed.put("something.else", b"")
        world.feed.publish(Topic.PIC_EVENTS, Publisher(1).segment_stored("s"))
        await asyncio.sleep(0.001)
        assert world.num_segments == 1


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa1a\x01", b"\x93\x01\x02\x03"])
async def test_a_message_that_nobody_can_read_is_skipped(data: bytes) -> None:
    async with ingesting(1) as world:
        await rounds()
        world.feed.put("namespace.pool.component.prefill.endpoint.generate.pic-events", data)
        world.feed.publish(Topic.PIC_EVENTS, Publisher(1).segment_stored("s"))
        await asyncio.sleep(0.001)
        assert world.num_segments == 1
        assert world.metric(MetricName.EVENTS, topic="pic-events") == 1


@pytest.mark.parametrize("payload", [{"worker_id": "x"}, [{"worker_id": 1}], 5, None])
async def test_a_readable_envelope_with_an_odd_payload_is_skipped(payload: object) -> None:
    async with ingesting(1) as world:
        await rounds()
        for topic in (Topic.KV_EVENTS, Topic.PIC_EVENTS):
            world.feed.publish(topic, payload)
        world.feed.publish(Topic.PIC_EVENTS, Publisher(1).segment_stored("s"))
        await asyncio.sleep(0.001)
        assert world.num_segments == 1


async def test_a_message_on_which_the_router_itself_fails_is_skipped() -> None:
    async with ingesting(1) as world:
        await rounds()
        publisher = Publisher(1)
        world.faults.append(RuntimeError("a fault of ours"))
        world.feed.publish(Topic.PIC_EVENTS, publisher.segment_stored("failed"))
        world.feed.publish(Topic.PIC_EVENTS, publisher.segment_stored("next"))
        await asyncio.sleep(0.001)
        assert world.num_segments == 1


async def test_a_gap_makes_the_router_ask_for_the_state_again() -> None:
    async with ingesting(1) as world:
        await rounds()
        publisher = Publisher(1)
        publisher.segment_stored("lost")
        world.feed.publish(Topic.PIC_EVENTS, publisher.segment_stored("seen"))
        world.states.give(publisher.state(segments=["lost", "seen"]))
        await rounds()
        assert world.states.asked == [1, 1]
        assert world.num_segments == 2
        assert world.metric(MetricName.EVENT_GAPS, topic="pic-events", reason="lost_events") == 1
        assert world.metric(MetricName.EVENT_GAPS, topic="kv-events", reason="lost_events") == 0
        # Whole again: the next event is no gap.
        world.feed.publish(Topic.PIC_EVENTS, publisher.segment_stored("next"))
        await rounds(3)
        assert (world.states.asked, world.num_segments) == ([1, 1], 3)


async def test_events_that_come_while_a_state_is_asked_for_are_not_lost() -> None:
    async with ingesting(1) as world:
        may_answer = world.states.hold(1)
        publisher = Publisher(1)
        publisher.segment_stored("in the state")
        world.states.give(publisher.state(segments=["in the state"]))
        await asyncio.sleep(PERIOD_S / 2)
        world.feed.publish(Topic.PIC_EVENTS, publisher.segment_stored("behind it"))
        await asyncio.sleep(0.001)
        may_answer.set()
        await rounds(3)
        assert (world.num_segments, world.states.asked) == (2, [1])


async def test_a_worker_that_restarts_under_its_id_is_asked_for_its_new_state() -> None:
    async with ingesting(1) as world:
        world.states.give(Publisher(1).state(segments=["old"]))
        await rounds()
        restarted = Publisher(1, epoch=2)
        world.feed.publish(Topic.PIC_EVENTS, restarted.segment_stored("new"))
        world.states.give(restarted.state(segments=["new"]))
        await rounds()
        assert (world.num_segments, world.states.asked, known_workers(world.state)) == (1, [1, 1], {1})
        assert world.metric(MetricName.EVENT_GAPS, topic="pic-events", reason="restarted") == 1


async def test_ending_it_ends_its_fetches() -> None:
    async with ingesting(1) as world:
        world.states.hold(1)
        await rounds()
        num_tasks = len(asyncio.all_tasks())
    await asyncio.sleep(0)
    # `run`, its two loops and the fetch are over.
    assert len(asyncio.all_tasks()) == num_tasks - 4
    assert now_s() < RETRY_S
