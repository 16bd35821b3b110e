"""The bound: every segment that was finished anywhere is local at no cost.

Placement and parallel prefill are Nebula's own planner, told that every worker has every finished segment. What remains
is the first computation of each segment, the tokens that belong to no segment, those that fusion computes again, and
the queue. A segment that is still being computed for another request is not there yet and is computed again, so this is
no bound where requests with the same new text come close together; `OmniscientPolicy` is one there too.
"""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from nebula_bench.policies.policy import Placement, Policy
from nebula_protocol.card import WorkerCard
from nebula_protocol.cutter import cut_prompt
from nebula_protocol.cutting import CutterConfig
from nebula_protocol.hashing import hash_blocks
from nebula_protocol.ids import DpRank, Origin, RequestId, SegmentHash, WorkerId, WorkerWithDpRank
from nebula_protocol.layout import PromptLayout
from nebula_protocol.messages import FetchedSegment, FetchReply, StateChunk
from nebula_protocol.plan import Plan, Source
from nebula_protocol.receipt import Receipt
from nebula_protocol.tokens import token_bytes
from nebula_router.core.coverage import STORED, Coverage
from nebula_router.core.fleet import Fleet
from nebula_router.core.load import LoadTracker
from nebula_router.core.plan_answer import PlanAnswer
from nebula_router.core.plan_question import PlannerSettings, PlanQuestion
from nebula_router.core.planner import plan_prefill
from nebula_router.core.worker_profile import profiles_of
from nebula_router.decide import HelperDispatch, helper_dispatch
from nebula_router.errors import NoWorkerError
from nebula_router.request import RoutedRequest
from pic_worker.adapters.sim.costs import SimCosts
from pic_worker.core.effects import FetchCommand

_EVERYWHERE = WorkerWithDpRank(WorkerId(0), DpRank(0))
"""Nobody's id: where finished segments come from."""


class OraclePolicy(Policy):
    sees_blocks = False
    counts_dispatched = False
    """Whether a segment is everywhere as soon as a request with it is on its way."""

    def __init__(self, cutter: CutterConfig) -> None:
        self._cutter = cutter
        self._loads = LoadTracker()
        self._cards: dict[WorkerId, WorkerCard] = {}
        self._finished: dict[SegmentHash, bytes] = {}
        self._expected: dict[RequestId, PromptLayout] = {}

    @classmethod
    def worker_costs(cls, base: SimCosts) -> SimCosts:
        return replace(base, load=replace(base.load, host_load_bytes_per_s=np.inf, rotation_bytes_per_s=np.inf))

    def add_worker(self, card: WorkerCard, chunks: Sequence[StateChunk], now_s: float) -> None:
        self._cards[card.worker_id] = card
        for profile in profiles_of(card):
            self._loads.put_worker(profile)

    def remove_worker(self, worker_id: WorkerId) -> None:
        self._cards.pop(worker_id, None)
        self._loads.remove_worker(WorkerWithDpRank(worker_id))

    # ---- requests ----

    def place(self, request: RoutedRequest, *, excluded: frozenset[WorkerId], attempt: int, now_s: float) -> Placement:
        if not self._cards:
            raise NoWorkerError("no worker is alive")
        fleet = Fleet.of([profile for one in sorted(self._cards) for profile in profiles_of(self._cards[one])])
        card = next(iter(self._cards.values()))
        layout = self._cut(request, card.domain.block_size_tokens)
        question = PlanQuestion(
            request_id=request.request_id,
            domain_id=card.domain.domain_id,
            layout=layout,
            coverage=self._coverage(layout, fleet.workers),
            fleet=fleet,
            load=self._loads.snapshot(fleet.workers, now_s),
            settings=PlannerSettings(),
            excluded=frozenset(worker for worker in fleet.workers if worker.worker_id in excluded),
        )
        answer = plan_prefill(question, now_s)
        if answer is None:
            raise NoWorkerError("no worker can take the prompt")
        self._record(request.request_id, layout, answer, now_s)
        return Placement(
            target=answer.plan.target,
            plan=_from_everywhere(answer.plan),
            helpers=tuple(helper_dispatch(request.token_ids, answer.plan, helper) for helper in answer.helpers),
            known_segments=frozenset(self._finished.keys() & {segment.segment_hash for segment in layout.segments}),
        )

    def _cut(self, request: RoutedRequest, block_size_tokens: int) -> PromptLayout:
        return cut_prompt(
            request.tokens,
            self._cutter,
            block_size_tokens=block_size_tokens,
            block_hashes=hash_blocks(request.tokens, block_size_tokens),
            spans=request.options.spans,
        )

    def _coverage(self, layout: PromptLayout, workers: tuple[WorkerWithDpRank, ...]) -> Coverage:
        shape = (len(layout.segments), len(workers))
        states = np.zeros(shape, dtype=np.uint8)
        states[[segment.segment_hash in self._finished for segment in layout.segments]] = STORED
        none = np.zeros(len(workers), dtype=np.int64)
        return Coverage(workers, none, none, states, np.zeros(shape))

    def _record(self, request_id: RequestId, layout: PromptLayout, answer: PlanAnswer, now_s: float) -> None:
        self._expected[request_id] = layout
        if self.counts_dispatched:
            self._finish(layout)
        target = answer.plan.target
        self._loads.record_dispatch(request_id, target, answer.work, runnable_at_s=answer.runnable_at_s, now_s=now_s)
        for helper in answer.helpers:
            self._loads.record_dispatch(request_id, helper.worker, helper.work, runnable_at_s=now_s, now_s=now_s)
        for transfer in answer.transfers:
            self._loads.record_transfer(transfer.source, target, transfer.num_tokens, now_s=now_s)

    def record_receipt(self, placement: Placement, receipt: Receipt, now_s: float) -> None:
        self._finish(self._expected.pop(receipt.request_id))
        self._loads.record_receipt(receipt.request_id, receipt.worker, receipt.work, now_s=now_s)

    def record_failure(self, request: RoutedRequest, placement: Placement, now_s: float) -> None:
        del self._expected[request.request_id]
        self._loads.record_failure(request.request_id, placement.target, now_s=now_s)

    def record_helper_done(self, helper: HelperDispatch, now_s: float) -> None:
        self._loads.record_receipt(helper.task.for_request, helper.worker, None, now_s=now_s)

    def record_helper_failure(self, helper: HelperDispatch, now_s: float) -> None:
        self._loads.record_failure(helper.task.for_request, helper.worker, now_s=now_s)

    def _finish(self, layout: PromptLayout) -> None:
        for segment in layout.segments:
            if segment.segment_hash not in self._finished:
                self._finished[segment.segment_hash] = token_bytes(layout.tokens[segment.start : segment.end])

    # ---- transfers ----

    def serve_at_once(self, command: FetchCommand) -> FetchReply | None:
        if command.from_worker != _EVERYWHERE:
            return None
        return FetchReply(
            epoch=self._cards[min(self._cards)].epoch,
            segments=tuple(
                FetchedSegment(
                    segment_hash=wanted.segment_hash,
                    token_bytes=self._finished[wanted.segment_hash],
                    origin=Origin.IN_CONTEXT,
                )
                for wanted in command.segments
            ),
        )


class OmniscientPolicy(OraclePolicy):
    """The bound of the bound: every segment that any earlier request had is local at no cost, finished or not."""

    counts_dispatched = True


def _from_everywhere(plan: Plan) -> Plan:
    """Hits come from outside the cluster, whatever the target's own store has kept."""
    return msgspec.structs.replace(
        plan,
        segments=tuple(
            msgspec.structs.replace(segment, source=Source.FETCH, from_worker=_EVERYWHERE, keep=False)
            if segment.source is Source.LOCAL
            else segment
            for segment in plan.segments
        ),
    )
