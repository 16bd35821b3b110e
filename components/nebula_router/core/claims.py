"""Speculation: what dispatched requests will leave at holders, until events confirm it or time runs out."""

import heapq
from collections.abc import Collection
from typing import TypeVar

import numpy as np

from nebula_protocol.ids import RequestId
from nebula_router.core.block_claims import BlockClaims
from nebula_router.core.holder_claim import ClaimId, HolderClaim
from nebula_router.core.holder_table import HolderTable
from nebula_router.core.holders import Holder
from nebula_router.core.key_map import IntArray
from nebula_router.core.prefix_blocks import BlockRun, PrefixBlocks
from nebula_router.core.segment_claims import SegmentClaims

Outer = TypeVar("Outer")
Inner = TypeVar("Inner")


class ClaimBook:
    """The live claims and their lives. A request has at most one at a holder."""

    def __init__(self, table: HolderTable, blocks: PrefixBlocks, ttl_s: float) -> None:
        self.blocks = BlockClaims(table, blocks)
        self.segments = SegmentClaims(table)
        self._table = table
        self._ttl_s = ttl_s
        self._next_id = 0
        self._by_holder: dict[int, dict[ClaimId, HolderClaim]] = {}
        self._by_request: dict[RequestId, dict[int, HolderClaim]] = {}
        self._deadlines: list[tuple[float, ClaimId, HolderClaim]] = []

    def __len__(self) -> int:
        return sum(map(len, self._by_holder.values()))

    def of_request(self, request_id: RequestId, holder: Holder) -> HolderClaim | None:
        return self._by_request.get(request_id, {}).get(holder.slot)

    def open(self, holder: Holder, request_id: RequestId, ready_at_s: float) -> HolderClaim:
        """A claim without content, of a request that has none at this holder."""
        claim = HolderClaim(ClaimId(self._next_id), request_id, holder, ready_at_s + self._ttl_s)
        self._next_id += 1
        self._by_holder.setdefault(holder.slot, {})[claim.claim_id] = claim
        self._by_request.setdefault(request_id, {})[holder.slot] = claim
        heapq.heappush(self._deadlines, (claim.deadline_s, claim.claim_id, claim))
        return claim

    def claim_segments(self, claim: HolderClaim, rows: IntArray, ready_at_s: float) -> None:
        self.segments.claim(claim, rows, ready_at_s)
        if ready_at_s + self._ttl_s > claim.deadline_s:
            self._set_deadline(claim, ready_at_s + self._ttl_s)

    def postpone(self, claim: HolderClaim, ready_at_s: float) -> None:
        """Everything of the claim is to be ready at another time than thought."""
        claim.ready_at_s = dict.fromkeys(claim.ready_at_s, ready_at_s)
        self._set_deadline(claim, ready_at_s + self._ttl_s)

    def confirm(self, claim: HolderClaim, now_s: float) -> None:
        """The holder has done its work: UNCONFIRMED from now on."""
        claim.in_flight = False
        self._set_deadline(claim, now_s + self._ttl_s)

    def end(self, claim: HolderClaim) -> None:
        """Takes everything of the claim back at once."""
        if not claim.live:
            return
        claim.live = False
        holder = claim.holder
        block_rows = self.blocks.end(claim, (other for other in self._of(holder) if other is not claim))
        segment_rows = self.segments.end(claim)
        _remove(self._by_holder, holder.slot, claim.claim_id)
        _remove(self._by_request, claim.request_id, holder.slot)
        self._table.release_empty(np.concatenate([block_rows, np.array(segment_rows, dtype=np.int64)]))

    def end_all_of(self, holder: Holder) -> None:
        for claim in list(self._of(holder)):
            self.end(claim)

    def expire(self, now_s: float) -> int:
        """Ends the claims whose time is over and returns how many. O(expired)."""
        num_ended = 0
        while self._deadlines and self._deadlines[0][0] <= now_s:
            deadline_s, _, claim = heapq.heappop(self._deadlines)
            if claim.live and claim.deadline_s == deadline_s:
                self.end(claim)
                num_ended += 1
        return num_ended

    # ---- what events say ----

    def advance_blocks(self, holder: Holder, run: BlockRun) -> None:
        """The holder's device tier has the blocks: to be called before they get rows, and `settle_blocks` after."""
        self.blocks.advance(run, self._of(holder))

    def settle_blocks(self, holder: Holder, rows: IntArray) -> None:
        self.blocks.settle(holder, rows, self._of(holder))

    def disprove_blocks(self, holder: Holder, rows: IntArray) -> None:
        """The holder's device tier has them no more."""
        self.blocks.disprove(holder, rows, self._of(holder))

    def disprove_all_blocks(self, holder: Holder, rows: IntArray) -> None:
        """The holder's device tier is empty; `rows` are those of all blocks."""
        self.disprove_blocks(holder, rows)
        self.blocks.disprove_deferred(self._of(holder))

    def disprove_all_segments(self, holder: Holder) -> None:
        self.segments.disprove_all(self._of(holder))

    def _of(self, holder: Holder) -> Collection[HolderClaim]:
        """In the order of dispatch."""
        return self._by_holder.get(holder.slot, {}).values()

    def _set_deadline(self, claim: HolderClaim, deadline_s: float) -> None:
        claim.deadline_s = deadline_s
        heapq.heappush(self._deadlines, (deadline_s, claim.claim_id, claim))


def _remove(groups: dict[Outer, dict[Inner, HolderClaim]], outer: Outer, inner: Inner) -> None:
    group = groups[outer]
    del group[inner]
    if not group:
        del groups[outer]
