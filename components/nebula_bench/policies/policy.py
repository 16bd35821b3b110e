"""What the simulation asks whoever routes: place a request, and learn from what comes back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from nebula_bench.policies.block_index import BlockIndex
from nebula_protocol.card import WorkerCard
from nebula_protocol.events import WorkerKvEvent, WorkerPicEvents
from nebula_protocol.ids import SegmentHash, WorkerId, WorkerWithDpRank
from nebula_protocol.messages import FetchedSegment, FetchReply, FetchRequest, StateChunk
from nebula_protocol.plan import Plan
from nebula_protocol.receipt import Receipt
from nebula_router.decide import HelperDispatch
from nebula_router.errors import NoWorkerError
from nebula_router.request import RoutedRequest
from pic_worker.adapters.sim.costs import SimCosts
from pic_worker.core.effects import FetchCommand
from pic_worker.core.engine_config import EngineConfig
from pic_worker.core.store import TwoClassStore
from pic_worker.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes."""

    target: WorkerWithDpRank
    plan: Plan | None = None
    """None: the worker cuts the prompt itself and reuses what it has."""
    helpers: tuple[HelperDispatch, ...] = ()
    known_segments: frozenset[SegmentHash] = frozenset()
    """Of which the policy knew a copy anywhere, stored or on its way: what it computes of these is on purpose."""


class Policy:
    """Router and workers of one kind of deployment. Every method is called in virtual time and takes none of it.

    A policy overrides what it cares about; by itself this one heeds nothing and places nothing.
    """

    sees_blocks: ClassVar[bool] = True
    """Whether it takes in kv-events."""
    sees_segments: ClassVar[bool] = False
    """Whether it takes in pic-events."""
    fetches_prefix: ClassVar[bool] = False
    """Whether what its plans fetch are prefix blocks rather than segments."""

    @classmethod
    def worker_settings(cls, base: WorkerSettings) -> WorkerSettings:
        """How its workers differ from the cell's."""
        return base

    @classmethod
    def worker_costs(cls, base: SimCosts) -> SimCosts:
        """What costs its workers something else than the cell's."""
        return base

    @classmethod
    def engine_config(cls, base: EngineConfig) -> EngineConfig:
        """How its workers' engines differ from what their settings say."""
        return base

    @classmethod
    def make_store(cls, config: EngineConfig) -> TwoClassStore | None:
        """A store of another kind for each of its workers; None for the usual one."""
        return None

    # ---- workers ----

    def add_worker(self, card: WorkerCard, chunks: Sequence[StateChunk], now_s: float) -> None:
        """A new or restarted worker, or a known one's full state that `needs_state` asked for."""

    def remove_worker(self, worker_id: WorkerId) -> None:
        """A worker left or was lost."""

    def needs_state(self) -> frozenset[WorkerId]:
        return frozenset()

    def begin_state(self, worker_id: WorkerId) -> None:
        """The worker's state is going to be asked for."""

    def apply_kv_events(self, events: Sequence[WorkerKvEvent], now_s: float) -> None:
        """Blocks entered or left a device tier."""

    def apply_pic_events(self, events: WorkerPicEvents, now_s: float) -> None:
        """Blocks or segments entered or left a store."""

    def prefix_ratio(self) -> float | None:
        """How the workers are to divide their stores now; None to leave it to their own settings."""
        return None

    # ---- requests ----

    def place(self, request: RoutedRequest, *, excluded: frozenset[WorkerId], attempt: int, now_s: float) -> Placement:
        """Chooses and records.

        Raises:
            NoWorkerError: nobody can take it.
        """
        raise NoWorkerError(f"{type(self).__name__} places nothing")

    def serve_at_once(self, command: FetchCommand) -> FetchReply | None:
        """The answer to a worker's fetch that costs nothing, of a policy that brings segments by itself."""
        return None

    def serve_prefix(
        self, request: FetchRequest, worker_id: WorkerId, held: BlockIndex
    ) -> tuple[FetchedSegment, ...] | None:
        """The source's answer to a fetch of prefix blocks; None where the fetch is of segments.

        Args:
            worker_id: the source.
            held: what it really has at this moment.
        """
        return None

    def record_receipt(self, placement: Placement, receipt: Receipt, now_s: float) -> None:
        """The request's prefill is done."""

    def record_failure(self, request: RoutedRequest, placement: Placement, now_s: float) -> None:
        """The target died under the request."""

    def record_helper_done(self, helper: HelperDispatch, now_s: float) -> None:
        """A helper has done its share."""

    def record_helper_failure(self, helper: HelperDispatch, now_s: float) -> None:
        """A helper died under its share."""
