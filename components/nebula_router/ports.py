"""What the router needs from outside. Each port has a real adapter and a fake; one suite of tests runs on both."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Protocol

from nebula_protocol.events import Decision, SplitReview
from nebula_protocol.hashing import HashArray
from nebula_protocol.ids import WorkerId
from nebula_protocol.messages import StateChunk
from nebula_protocol.tokens import TokenArray

JsonObject = dict[str, object]
"""A request or a chunk as Dynamo's request plane carries it."""


Origin = object | None
"""Where a request came from, as the adapter knows it: its trace and id go on to the workers. None: nowhere."""


class Clock(Protocol):
    """Monotonic seconds."""

    def __call__(self) -> float: ...


class WorkerPool(Protocol):
    """The live workers of one role, and the way to send a request to one of them."""

    def live_workers(self) -> frozenset[WorkerId]:
        """Those that discovery lists now; may lag behind a crash by seconds."""
        ...

    def generate(
        self, worker_id: WorkerId, request: Mapping[str, object], origin: Origin = None, id_suffix: str = ""
    ) -> AsyncGenerator[JsonObject, None]:
        """The worker's reply chunks. Closed or cancelled before the end, it tells the worker to stop at once.

        Args:
            origin: Its trace goes on to the worker, and its id with `id_suffix` behind it.

        Raises:
            WorkerGoneError: it cannot be reached, or its stream broke before the end.
            WorkerRefusedError: it answered with an error of its own.
        """
        ...


class StateSource(Protocol):
    async def fetch_state(self, worker_id: WorkerId) -> Sequence[StateChunk]:
        """A worker's full state, all chunks of one snapshot in order.

        Raises:
            WorkerGoneError: no complete answer in time.
        """
        ...


class EventFeed(Protocol):
    def messages(self) -> AsyncIterator[tuple[str, bytes]]:
        """(subject, data) of every event message of the deployment's workers, in order of arrival."""
        ...


class DecisionSink(Protocol):
    async def publish_decision(self, decision: Decision) -> None: ...


class SplitSink(Protocol):
    async def send_split(self, worker_id: WorkerId, prefix_ratio: float) -> None:
        """Tells a worker which share of its store is for prefix blocks. One that is not there hears nothing."""
        ...


class ReviewSink(Protocol):
    async def publish_review(self, review: SplitReview) -> None:
        """Tells whoever reads what became of the split behind a window of requests."""
        ...


class BlockHasher(Protocol):
    """Dynamo's block hashes for a lineage with a salt; the unsalted ones are `nebula_protocol.hashing.hash_blocks`."""

    def __call__(self, tokens: TokenArray, block_size_tokens: int, lineage: str) -> HashArray: ...
