"""Questions to the planner with round numbers.

A step has a floor of 10 ms and takes 0.1 ms a token, attention apart; a copied token takes 0.01 ms on the link behind a
floor of 1 ms; loading is free and nothing is recomputed, unless a case says otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from nebula_protocol.card import WorkerCard
from nebula_protocol.cost import CostFit, LinkFit
from nebula_protocol.domain import Domain
from nebula_protocol.fusion import NO_FUSION
from nebula_protocol.ids import DomainId, RequestId, Role, SegmentHash, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.layout import Mark, PromptLayout, Segment
from nebula_router.core.coverage import Coverage
from nebula_router.core.fleet import Fleet
from nebula_router.core.load_snapshot import FloatArray, LoadSnapshot
from nebula_router.core.plan_question import PlannerSettings, PlanQuestion
from nebula_router.core.worker_profile import WorkerProfile

NOW_S = 100.0
STEP_S = 0.010
TOKEN_S = 0.0001
LINK_TOKEN_S = 0.00001
LINK_FLOOR_S = 0.001
BLOCK = 16

ROUND_CARD = WorkerCard(
    worker_id=WorkerId(1),
    epoch=WorkerEpoch(1),
    role=Role.PREFILL,
    domain=Domain(model="model", block_size_tokens=BLOCK),
    engine="sim",
    pic=True,
    context_tokens=32_768,
    device_capacity_tokens=100_000,
    store_capacity_tokens=200_000,
    kv_bytes_per_token=1_000,
    max_step_tokens=8_192,
    num_layers=40,
    fusion=NO_FUSION,
    step_cost=CostFit(step_s=STEP_S, per_token_s=TOKEN_S, per_pair_s=0.0),
    peer_link=LinkFit(floor_s=LINK_FLOOR_S, bytes_per_s=1e8),
    load_s_per_token=0.0,
)


def round_card(worker_id: int, **changes: object) -> WorkerCard:
    return msgspec.structs.replace(ROUND_CARD, worker_id=WorkerId(worker_id), **changes)


def worker(worker_id: int) -> WorkerWithDpRank:
    return WorkerWithDpRank(WorkerId(worker_id))


def segment_hash(name: object) -> SegmentHash:
    return SegmentHash(str(name).encode().rjust(16, b"."))


def layout_of(num_tokens: int, spans: Sequence[tuple[int, int]]) -> PromptLayout:
    """The segments' contents differ, and are named by their places in the prompt."""
    return PromptLayout(
        tokens=np.zeros(num_tokens, dtype=np.uint32),
        block_size_tokens=BLOCK,
        block_hashes=np.zeros(num_tokens // BLOCK, dtype=np.uint64),
        segments=tuple(Segment(*span, segment_hash(index), Mark.SPAN) for index, span in enumerate(spans)),
    )


@dataclass(slots=True)
class PlacementCase:
    """Set what differs from idle workers that hold nothing; worker ids count from 1."""

    cards: Sequence[WorkerCard]
    layout: PromptLayout
    settings: PlannerSettings = field(default_factory=PlannerSettings)
    prefix_device: Mapping[int, int] = field(default_factory=dict)
    prefix: Mapping[int, int] = field(default_factory=dict)
    states: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """(segment, worker id) to state."""
    ready_in_s: Mapping[tuple[int, int], float] = field(default_factory=dict)
    load: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Column of the snapshot to values by worker id."""
    work_price: float = 0.0
    excluded: frozenset[int] = frozenset()
    only_target: int | None = None

    def question(self, order: Sequence[int] | None = None) -> PlanQuestion:
        """`order` gives the columns, as indices into `cards`."""
        cards = [self.cards[index] for index in (order if order is not None else range(len(self.cards)))]
        fleet = Fleet.of([WorkerProfile(worker(card.worker_id), card) for card in cards])
        columns = {int(card.worker_id): column for column, card in enumerate(cards)}
        return PlanQuestion(
            request_id=RequestId("request"),
            domain_id=DomainId("domain"),
            layout=self.layout,
            coverage=self._coverage(fleet, columns),
            fleet=fleet,
            load=self._snapshot(fleet, columns),
            settings=self.settings,
            excluded=frozenset(worker(worker_id) for worker_id in self.excluded),
            only_target=None if self.only_target is None else WorkerId(self.only_target),
        )

    def _coverage(self, fleet: Fleet, columns: Mapping[int, int]) -> Coverage:
        shape = (len(self.layout.segments), len(columns))
        device, both = np.zeros((2, len(columns)), dtype=np.int64)
        states, ready_at_s = np.zeros(shape, dtype=np.uint8), np.zeros(shape)
        for worker_id, column in columns.items():
            device[column] = self.prefix_device.get(worker_id, self.prefix.get(worker_id, 0))
            both[column] = max(device[column], self.prefix.get(worker_id, 0))
        for (index, worker_id), state in self.states.items():
            states[index, columns[worker_id]] = state
        for (index, worker_id), ready_in_s in self.ready_in_s.items():
            ready_at_s[index, columns[worker_id]] = NOW_S + ready_in_s
        return Coverage(fleet.workers, device, both, states, ready_at_s)

    def _snapshot(self, fleet: Fleet, columns: Mapping[int, int]) -> LoadSnapshot:
        def column(name: str, default: FloatArray | float = 0.0) -> FloatArray:
            values = np.zeros(len(columns)) + default
            for worker_id, value in self.load.get(name, {}).items():
                values[columns[worker_id]] = value
            return values

        free_in_s = column("free_in_s")
        drained_in_s = column("drained_in_s", free_in_s)
        return LoadSnapshot(
            workers=fleet.workers,
            free_in_s=free_in_s,
            queued_tokens=column("queued_tokens"),
            co_batched=column("co_batched"),
            turn_in_s=column("turn_in_s", free_in_s),
            drained_in_s=drained_in_s,
            late_from_s=column("late_from_s", np.inf),
            num_late=column("num_late"),
            late_free_in_s=np.maximum(drained_in_s, column("late_free_in_s")),
            recent_work_s=column("recent_work_s"),
            cost_factor=column("cost_factor", 1.0),
            link_out_busy_s=column("link_out_busy_s"),
            link_in_busy_s=column("link_in_busy_s"),
            work_price=self.work_price,
        )
