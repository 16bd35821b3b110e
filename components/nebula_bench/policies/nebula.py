"""Nebula: the router's own decision code, as it runs live."""

from collections.abc import Sequence

from nebula_bench.policies.one_order_store import OneOrderStore
from nebula_bench.policies.policy import Placement, Policy
from nebula_protocol.card import WorkerCard
from nebula_protocol.cutting import CutterConfig
from nebula_protocol.events import WorkerKvEvent, WorkerPicEvents
from nebula_protocol.hashing import HashArray
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.messages import StateChunk
from nebula_protocol.receipt import Receipt
from nebula_protocol.tokens import TokenArray
from nebula_router.decide import Decided, HelperDispatch, RouterState
from nebula_router.request import RoutedRequest
from nebula_router.settings import RouterSettings
from pic_worker.core.engine_config import EngineConfig
from pic_worker.core.store import TwoClassStore


class NebulaPolicy(Policy):
    """`RouterState` behind the simulation's interface."""

    sees_segments = True

    def __init__(self, settings: RouterSettings, cutter: CutterConfig) -> None:
        self.state = RouterState(settings, cutter, refuse_salt)
        self._decided: dict[RequestId, Decided] = {}

    def add_worker(self, card: WorkerCard, chunks: Sequence[StateChunk], now_s: float) -> None:
        self.state.apply_state(chunks, now_s)

    def remove_worker(self, worker_id: WorkerId) -> None:
        self.state.remove_worker(worker_id)

    def needs_state(self) -> frozenset[WorkerId]:
        return self.state.view.needs_state()

    def begin_state(self, worker_id: WorkerId) -> None:
        self.state.view.begin_state(worker_id)

    def apply_kv_events(self, events: Sequence[WorkerKvEvent], now_s: float) -> None:
        self.state.apply_kv_events(events, now_s)

    def apply_pic_events(self, events: WorkerPicEvents, now_s: float) -> None:
        self.state.apply_pic_events(events, now_s)

    def prefix_ratio(self) -> float | None:
        return None if self.state.split is None else self.state.split.prefix_ratio

    def place(self, request: RoutedRequest, *, excluded: frozenset[WorkerId], attempt: int, now_s: float) -> Placement:
        decided = self.state.decide(request, excluded=excluded, attempt=attempt, now_s=now_s)
        self._decided[request.request_id] = decided
        segments = decided.plan.segments
        return Placement(
            target=decided.plan.target,
            plan=decided.plan,
            helpers=decided.helpers,
            known_segments=frozenset(
                segment.segment_hash for index, segment in enumerate(segments) if index not in decided.unknown_segments
            ),
        )

    def record_receipt(self, placement: Placement, receipt: Receipt, now_s: float) -> None:
        self.state.record_receipt(self._decided.pop(receipt.request_id), receipt, now_s)

    def record_failure(self, request: RoutedRequest, placement: Placement, now_s: float) -> None:
        self.state.record_failure(self._decided.pop(request.request_id), now_s)

    def record_helper_done(self, helper: HelperDispatch, now_s: float) -> None:
        self.state.record_helper_done(helper.task.for_request, helper.worker, now_s)

    def record_helper_failure(self, helper: HelperDispatch, now_s: float) -> None:
        self.state.record_helper_failure(helper.task.for_request, helper.worker, now_s)


class OneOrderPolicy(NebulaPolicy):
    """In front of workers whose stores know no classes; to be used with a fixed split, which they ignore."""

    @classmethod
    def make_store(cls, config: EngineConfig) -> TwoClassStore:
        return OneOrderStore(capacity_tokens=config.store_capacity_tokens, block_size_tokens=config.block_size_tokens)


def refuse_salt(tokens: TokenArray, block_size_tokens: int, lineage: str) -> HashArray:
    """In place of Dynamo's hashes for tenants: a benchmark has none.

    Raises:
        ValueError: always.
    """
    raise ValueError(f"no request of a benchmark has the lineage {lineage!r}")
