"""What the router has just caused: dispatched requests as claims, and receipts that correct the index at once."""

from collections.abc import Iterable

import numpy as np

from nebula_protocol.ids import RemovalReason, RequestId, WorkerWithDpRank
from nebula_protocol.plan import Plan, Source
from nebula_protocol.receipt import FallbackReason, Receipt, SegmentOutcome
from nebula_router.core.holder_claim import HolderClaim
from nebula_router.core.holders import Holder
from nebula_router.core.index import Index
from nebula_router.core.lookup import Lookup
from nebula_router.core.plan_answer import PlanAnswer

_NOT_THERE = frozenset({FallbackReason.NOT_THERE, FallbackReason.TOKENS_DIFFER, FallbackReason.DOMAIN_DIFFERS})
"""Fallbacks that say that a holder does not have what the index believes."""


class RequestClaims:
    """A request has at most one claim at a holder: at its target for blocks and segments, at helpers for segments."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def withdraw(self, answer: PlanAnswer) -> None:
        """Ends what the request claimed before, at the workers to which it goes now."""
        for worker in (answer.plan.target, *(helper.worker for helper in answer.helpers)):
            self.record_failure(answer.plan.request_id, worker)

    def record_dispatch(self, lookup: Lookup, answer: PlanAnswer) -> None:
        """What the target and the helpers will have is IN_FLIGHT. Workers that are gone meanwhile are left out."""
        index, plan = self._index, answer.plan
        target = index.holders.get(plan.target)
        if target is not None:
            claim = index.claim_blocks(target, plan.request_id, lookup.run, lookup.rows, answer.completion_at_s)
            self._claim_segments(claim, plan, answer.computed_segments, answer.completion_at_s)
            self._claim_segments(claim, plan, answer.copied_segments, answer.copied_at_s)
        for helper in answer.helpers:
            holder = index.holders.get(helper.worker)
            if holder is not None:
                claim = self._claim_at(holder, plan.request_id, helper.ready_at_s)
                self._claim_segments(claim, plan, helper.segment_indices, helper.ready_at_s)

    def postpone(self, request_id: RequestId, worker: WorkerWithDpRank, ready_at_s: float) -> None:
        claim = self._find(request_id, worker)
        if claim is not None:
            self._index.claims.postpone(claim, ready_at_s)

    def record_receipt(self, plan: Plan, receipt: Receipt, now_s: float) -> None:
        """What is where is known now and will be confirmed by events later."""
        holder = self._index.holders.get(receipt.worker)
        if holder is None:
            return
        if receipt.worker == plan.target:
            self._disprove(plan, receipt)
        stored = [outcome for outcome in receipt.segments if outcome.stored]
        claim = self._find(plan.request_id, receipt.worker)
        if claim is None:
            if not stored:
                return
            claim = self._claim_at(holder, plan.request_id, now_s)
        self._index.claims.confirm(claim, now_s)
        self._expect(claim, plan, stored, now_s)
        self._drop_unkept(claim, stored)

    def record_done(self, request_id: RequestId, worker: WorkerWithDpRank, now_s: float) -> None:
        claim = self._find(request_id, worker)
        if claim is not None:
            self._index.claims.confirm(claim, now_s)

    def record_failure(self, request_id: RequestId, worker: WorkerWithDpRank) -> None:
        claim = self._find(request_id, worker)
        if claim is not None:
            self._index.claims.end(claim)

    def _find(self, request_id: RequestId, worker: WorkerWithDpRank) -> HolderClaim | None:
        holder = self._index.holders.get(worker)
        return self._index.claims.of_request(request_id, holder) if holder is not None else None

    def _claim_at(self, holder: Holder, request_id: RequestId, ready_at_s: float) -> HolderClaim:
        claims = self._index.claims
        return claims.of_request(request_id, holder) or claims.open(holder, request_id, ready_at_s)

    def _claim_segments(self, claim: HolderClaim, plan: Plan, indices: Iterable[int], ready_at_s: float) -> None:
        segments = [plan.segments[at] for at in indices]
        if segments:
            sized = [(segment.segment_hash, segment.end - segment.start) for segment in segments]
            self._index.claim_segments(claim, plan.domain_id, sized, ready_at_s)

    def _disprove(self, plan: Plan, receipt: Receipt) -> None:
        """Takes out what holders turned out not to have."""
        sources = {(one.start, one.segment_hash): one.from_worker for one in plan.segments}
        for outcome in receipt.segments:
            if outcome.fallback not in _NOT_THERE:
                continue
            is_local = outcome.planned is Source.LOCAL
            if is_local and outcome.stored:
                # It is there by now, and an event may have said so already.
                continue
            source = receipt.worker if is_local else sources.get((outcome.start, outcome.segment_hash))
            holder = self._index.holders.get(source) if source is not None else None
            if holder is not None:
                # No reason that makes a ghost: when and why it went is not known.
                self._index.remove_segment(holder, plan.domain_id, outcome.segment_hash, RemovalReason.DROPPED)

    def _expect(self, claim: HolderClaim, plan: Plan, stored: list[SegmentOutcome], now_s: float) -> None:
        """They are there. If an event settled this claim's cell since the dispatch, events know better."""
        unclaimed = [
            (outcome.segment_hash, outcome.end - outcome.start)
            for outcome in stored
            if outcome.segment_hash not in claim.segment_hashes
        ]
        if unclaimed:
            self._index.claim_segments(claim, plan.domain_id, unclaimed, now_s)

    def _drop_unkept(self, claim: HolderClaim, stored: list[SegmentOutcome]) -> None:
        """Segments that were expected here and that the holder did not keep."""
        index = self._index
        kept = {outcome.segment_hash for outcome in stored}
        unkept = [row for row in claim.ready_at_s if index.segments.identity_of(row).segment_hash not in kept]
        for row in unkept:
            index.claims.segments.strike(claim, row)
        index.table.release_empty(np.array(unkept, dtype=np.int64))
