"""Events that others learn of later than they happen: what a slow event plane does, for comparisons."""

import asyncio

from pic_worker.core.effects import DeviceEvent, KvRemoved, KvStored
from pic_worker.ports import BlockEvents, Clock, SegmentEvents


class LateEvents:
    """One worker's events of both kinds, published in order, each the same time after it happened."""

    def __init__(
        self, block_events: BlockEvents, segment_events: SegmentEvents, *, delay_s: float, clock: Clock
    ) -> None:
        self._block_events = block_events
        self._segment_events = segment_events
        self._delay_s = delay_s
        self._clock = clock
        self._waiting: asyncio.Queue[tuple[float, object]] = asyncio.Queue()

    def put(self, event: object) -> None:
        """A block's event, or a message of the store's."""
        self._waiting.put_nowait((self._clock() + self._delay_s, event))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            due_s, event = await self._waiting.get()
            await asyncio.sleep(max(0.0, due_s - self._clock()))
            if isinstance(event, KvStored | KvRemoved):
                self._block_events.publish(event)
            else:
                await self._segment_events.publish(event)


class LateBlockEvents:
    """`BlockEvents` through `LateEvents`."""

    def __init__(self, late: LateEvents) -> None:
        self._late = late

    def publish(self, event: DeviceEvent) -> None:
        self._late.put(event)


class LateSegmentEvents:
    """`SegmentEvents` through `LateEvents`."""

    def __init__(self, late: LateEvents) -> None:
        self._late = late

    async def publish(self, payload: object) -> None:
        self._late.put(payload)
