"""What a worker needs from outside. Each port has a real adapter and a fake; one suite of tests runs on both."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Protocol

from prometheus_client import CollectorRegistry

from nebula_protocol.handover import Handover, Sampled
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.messages import FetchReply, FetchRequest, PromptPulled, PullPrompt
from pic_worker.core.effects import DeviceEvent
from pic_worker.core.transfer_outcome import TransferOutcome
from pic_worker.work import WorkRequest


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


class TransferMeter(Protocol):
    """Is told what moves between this worker and others."""

    def count_transfer(self, outcome: TransferOutcome) -> None:
        """One segment that was to come here, once its end is known."""
        ...

    def count_received(self, num_bytes: int) -> None:
        """KV of a segment that came whole."""
        ...

    def count_sent(self, num_bytes: int) -> None:
        """KV of a segment that was given away whole."""
        ...

    def observe_copy(self, duration_s: float) -> None:
        """Of segments that came from one source together, from asking for their bytes to the last of them."""
        ...


class PrefillWorker(Protocol):
    """A worker that computes prompts, whatever engine it has."""

    @property
    def registry(self) -> CollectorRegistry:
        """Its metrics."""
        ...

    @property
    def device_capacity_tokens(self) -> int:
        """KV room of the engine's own paged cache, as it turned out."""
        ...

    @property
    def main_task(self) -> "asyncio.Task[None]":
        """Runs as long as the worker is of use; when it fails, the process should end."""
        ...

    async def prefill(self, request_id: RequestId, work: WorkRequest) -> Handover:
        """The first token, and where the prompt's KV is held for decode. Cancelled, it leaves nothing behind.

        Raises:
            BadWorkError: the request cannot be served here.
        """
        ...

    async def help(self, request_id: RequestId, work: WorkRequest) -> None:
        """Computes the segments of the work's helper task and keeps them.

        Raises:
            BadWorkError: the task cannot be served here.
        """
        ...

    def is_quiescent(self) -> bool:
        """Nothing runs, and no prompt's KV waits to be taken over."""
        ...

    async def close(self) -> None: ...


class DecodeWorker(Protocol):
    """A worker that takes prompts over and generates answers, whatever engine it has."""

    @property
    def registry(self) -> CollectorRegistry | None:
        """Its metrics; None for none."""
        ...

    @property
    def device_capacity_tokens(self) -> int:
        """KV room of the engine's own paged cache, as it turned out."""
        ...

    @property
    def main_task(self) -> "asyncio.Task[None] | None":
        """As for `PrefillWorker`; None where there is no such task."""
        ...

    def decode(
        self, request_id: RequestId, work: WorkRequest, handover: Handover | None
    ) -> AsyncGenerator[Sampled, None]:
        """The answer behind the tokens of `work`, at least one piece. Closed or cancelled, it stops the engine.

        The handover's token comes at once, before the KV. KV that cannot be had, and a prompt without a handover, is
        computed here.

        Raises:
            BadWorkError: the request cannot be served here.
        """
        ...

    async def close(self) -> None: ...
