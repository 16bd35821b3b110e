"""The worker's two event ports, keeping what was published."""

from collections.abc import Callable

from nebula_protocol.events import PicEvent, WorkerPicEvents
from pic_worker.core.effects import DeviceEvent


class RecordedBlockEvents:
    """`BlockEvents`; `on_publish` is called after each event."""

    def __init__(self) -> None:
        self.events: list[DeviceEvent] = []
        self.on_publish: Callable[[], object] = lambda: None

    def publish(self, event: DeviceEvent) -> None:
        self.events.append(event)
        self.on_publish()


class RecordedSegmentEvents:
    """`SegmentEvents`."""

    def __init__(self) -> None:
        self.payloads: list[WorkerPicEvents] = []

    async def publish(self, payload: object) -> None:
        if not isinstance(payload, WorkerPicEvents):
            raise TypeError(f"a worker publishes no {type(payload).__name__}")
        self.payloads.append(payload)

    @property
    def events(self) -> list[PicEvent]:
        return [event for payload in self.payloads for event in payload.events]
