"""What a worker needs from outside. Each port has a real adapter and a fake; one suite of tests runs on both."""

from typing import Protocol

from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import FetchReply, FetchRequest, PromptPulled, PullPrompt
from pic_worker.core.effects import DeviceEvent


class Clock(Protocol):
    """Monotonic seconds."""

    def __call__(self) -> float: ...


class Peers(Protocol):
    """Other workers of the deployment."""

    async def fetch(self, worker_id: WorkerId, request: FetchRequest, timeout_s: float) -> FetchReply:
        """
        Raises:
            PeerGoneError: no answer within `timeout_s`.
        """
        ...

    async def pull_prompt(self, worker_id: WorkerId, request: PullPrompt, timeout_s: float) -> PromptPulled:
        """
        Raises:
            PeerGoneError: no answer within `timeout_s`.
        """
        ...


class BlockEvents(Protocol):
    """Dynamo's publisher of prefix-block events for the device tier; event ids are its own."""

    def publish(self, event: DeviceEvent) -> None: ...


class SegmentEvents(Protocol):
    """Publisher of the store's events."""

    async def publish(self, payload: object) -> None: ...
