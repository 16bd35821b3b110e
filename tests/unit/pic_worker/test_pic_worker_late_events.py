"""Events that a simulated worker publishes late."""

import asyncio

import pytest
from support.virtual_time import now_s

from nebula_protocol.ids import EngineBlockHash, EventId
from pic_worker.adapters.sim.costs import make_costs
from pic_worker.adapters.sim.late_events import LateBlockEvents, LateEvents, LateSegmentEvents
from pic_worker.core.effects import DeviceEvent, KvRemoved
from pic_worker.settings import SimSettings, WorkerSettings

DELAY_S = 0.5


class Published:
    """What came, and when."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, object]] = []

    def publish(self, event: DeviceEvent) -> None:
        self.seen.append((now_s(), event))


class PublishedSegments:
    def __init__(self, published: Published) -> None:
        self.seen = published.seen

    async def publish(self, payload: object) -> None:
        self.seen.append((now_s(), payload))


def removed(number: int) -> KvRemoved:
    return KvRemoved(EventId(number), (EngineBlockHash(number),))


async def test_events_of_both_kinds_come_in_order_and_each_as_late() -> None:
    published = Published()
    late = LateEvents(published, PublishedSegments(published), delay_s=DELAY_S, clock=now_s)
    running = asyncio.create_task(late.run())
    blocks, segments = LateBlockEvents(late), LateSegmentEvents(late)
    blocks.publish(removed(0))
    await asyncio.sleep(0.1)
    await segments.publish("stored")
    blocks.publish(removed(1))
    await asyncio.sleep(0.3)
    blocks.publish(removed(2))
    assert published.seen == []
    await asyncio.sleep(1.0)
    # Those of one moment are not kept waiting for one another.
    assert [event for _, event in published.seen] == [removed(0), "stored", removed(1), removed(2)]
    assert [at_s for at_s, _ in published.seen] == pytest.approx([DELAY_S, 0.1 + DELAY_S, 0.1 + DELAY_S, 0.4 + DELAY_S])
    running.cancel()


def test_the_delay_is_stretched_like_all_simulated_time() -> None:
    settings = WorkerSettings(sim=SimSettings(event_delay_s=DELAY_S, time_scale=4))
    assert make_costs(settings).event_delay_s == 2.0
    assert make_costs(WorkerSettings()).event_delay_s == 0.0
