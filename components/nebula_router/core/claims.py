"""Speculation: what dispatched requests will leave at holders, until events confirm it or time runs out."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NewType

import numpy as np

from nebula_protocol.ids import RequestId
from nebula_router.core.holder_table import HolderTable
from nebula_router.core.holders import Holder
from nebula_router.core.key_map import BoolArray, IntArray

ClaimId = NewType("ClaimId", int)
"""Ascending in the order of dispatch."""

_NO_ROWS = np.zeros(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class HolderClaim:
    """All that one dispatched request is expected to leave at one holder.

    IN_FLIGHT until its receipt, then UNCONFIRMED until `deadline_s`.
    """

    claim_id: ClaimId
    request_id: RequestId
    holder: Holder
    block_rows: IntArray
    """Rows of prefix blocks claimed at dispatch."""
    ready_at_s: dict[int, float]
    """By row, every segment ever claimed here, settled or not."""
    deadline_s: float
    in_flight: bool = True
    live: bool = True


class ClaimBook:
    """Live claims, and the table's `claimed` bits.

    A cell (row, holder) belongs to the latest live claim that names it; its bit is 0 once an event has settled it. For
    segments the owner is looked up. For blocks, a thousand to a claim, it is found only when it matters: a claim
    that ends clears those of its bits that no later claim of the holder names. The same makes reuse of rows safe: who
    claims a row's next content is always a later claim.
    """

    def __init__(self, table: HolderTable, ttl_s: float) -> None:
        self._table = table
        self._ttl_s = ttl_s
        self._next_id = 0
        self._by_holder: dict[int, dict[ClaimId, HolderClaim]] = {}
        self._by_request: dict[RequestId, dict[int, HolderClaim]] = {}
        self._deadlines: list[tuple[float, ClaimId, HolderClaim]] = []
        self._segment_owners: dict[int, dict[int, HolderClaim]] = {}
        self._marks: BoolArray = np.zeros(table.capacity, dtype=np.bool_)
        """By row, False between calls."""

    def __len__(self) -> int:
        return sum(map(len, self._by_holder.values()))

    def open(self, holder: Holder, request_id: RequestId, block_rows: IntArray, ready_at_s: float) -> HolderClaim:
        """Claims blocks (no row twice); segments are added with `claim_segments`. O(rows), vectorised.

        What the request claimed at this holder before ends.
        """
        before = self.of_request(request_id, holder)
        if before:
            self.end(before)
        claim = HolderClaim(
            claim_id=ClaimId(self._next_id),
            request_id=request_id,
            holder=holder,
            block_rows=block_rows,
            ready_at_s={},
            deadline_s=ready_at_s + self._ttl_s,
        )
        self._next_id += 1
        self._by_holder.setdefault(holder.slot, {})[claim.claim_id] = claim
        self._by_request.setdefault(request_id, {})[holder.slot] = claim
        self._table.claimed[holder.word][block_rows] |= holder.bit
        heapq.heappush(self._deadlines, (claim.deadline_s, claim.claim_id, claim))
        return claim

    def of_request(self, request_id: RequestId, holder: Holder) -> HolderClaim | None:
        return self._by_request.get(request_id, {}).get(holder.slot)

    def all_of_request(self, request_id: RequestId) -> list[HolderClaim]:
        return list(self._by_request.get(request_id, {}).values())

    def claim_segments(self, claim: HolderClaim, rows: IntArray, ready_at_s: float) -> None:
        slot, owners = claim.holder.slot, self._segment_owners
        listed = rows.tolist()
        claim.ready_at_s.update(dict.fromkeys(listed, ready_at_s))
        for row in listed:
            owners.setdefault(row, {})[slot] = claim
        self._table.claimed[claim.holder.word][rows] |= claim.holder.bit
        if ready_at_s + self._ttl_s > claim.deadline_s:
            self._set_deadline(claim, ready_at_s + self._ttl_s)

    def postpone(self, claim: HolderClaim, ready_at_s: float) -> None:
        """The holder is slower than expected: everything of the claim moves to the new time."""
        claim.ready_at_s = dict.fromkeys(claim.ready_at_s, ready_at_s)
        self._set_deadline(claim, ready_at_s + self._ttl_s)

    def confirm(self, claim: HolderClaim, now_s: float) -> None:
        """The holder has done its work: UNCONFIRMED from now on."""
        claim.in_flight = False
        self._set_deadline(claim, now_s + self._ttl_s)

    def end(self, claim: HolderClaim) -> None:
        """Takes the claim's cells back at once."""
        if not claim.live:
            return
        claim.live = False
        holder = claim.holder
        left = self._claimed_among(holder, claim.block_rows)
        if len(left):
            left = self._without_later(claim, left)
            self._table.claimed[holder.word][left] &= ~holder.bit
        of_holder = self._by_holder[holder.slot]
        del of_holder[claim.claim_id]
        if not of_holder:
            del self._by_holder[holder.slot]
        of_request = self._by_request[claim.request_id]
        del of_request[holder.slot]
        if not of_request:
            del self._by_request[claim.request_id]
        segments = [row for row in claim.ready_at_s if self.owner_of(row, holder) is claim]
        for row in segments:
            self.settle_segment(holder, row)
        self._table.release_empty(np.array([*left.tolist(), *segments], dtype=np.int64))

    def expire(self, now_s: float) -> int:
        """Ends the claims whose time is over and returns how many. O(expired)."""
        num_ended = 0
        while self._deadlines and self._deadlines[0][0] <= now_s:
            deadline_s, _, claim = heapq.heappop(self._deadlines)
            if claim.live and claim.deadline_s == deadline_s:
                self.end(claim)
                num_ended += 1
        return num_ended

    def end_all_of(self, holder: Holder) -> None:
        # The latest first: none then has to look for later ones.
        for claim in reversed(list(self._by_holder.get(holder.slot, {}).values())):
            self.end(claim)

    # ---- cells ----

    def owner_of(self, row: int, holder: Holder) -> HolderClaim | None:
        """Whose claim says that the segment is or will be at the holder."""
        owners = self._segment_owners.get(row)
        return owners.get(holder.slot) if owners else None

    def owners_of(self, row: int) -> dict[int, HolderClaim]:
        """By slot."""
        return self._segment_owners[row]

    def settle_blocks(self, holder: Holder, rows: IntArray) -> None:
        """Events say that the blocks are there: no claim is needed any more."""
        self._table.claimed[holder.word][rows] &= ~holder.bit

    def settle_segment(self, holder: Holder, row: int) -> None:
        """The cell is nobody's any more."""
        owners = self._segment_owners.get(row)
        if owners and owners.pop(holder.slot, None):
            self._table.claimed[holder.word, row] &= ~holder.bit
            if not owners:
                del self._segment_owners[row]

    def disprove_blocks(self, holder: Holder, rows: IntArray) -> None:
        """The blocks are gone: claims of finished requests fall, those in flight will put them there again."""
        left = self._claimed_among(holder, rows)
        if not len(left):
            return
        marks = self._mark(left)
        for claim in reversed(self._by_holder[holder.slot].values()):
            owned = claim.block_rows[marks.take(claim.block_rows)]
            marks[owned] = False
            if not claim.in_flight:
                self._table.claimed[holder.word][owned] &= ~holder.bit
        marks[left] = False

    def disprove_segment(self, holder: Holder, row: int) -> None:
        """As `disprove_blocks`."""
        owner = self.owner_of(row, holder)
        if owner and not owner.in_flight:
            self.settle_segment(holder, row)

    def disprove_segments(self, holder: Holder) -> None:
        """As `disprove_blocks`, for all that are claimed at the holder."""
        for claim in self._by_holder.get(holder.slot, {}).values():
            if not claim.in_flight:
                for row in claim.ready_at_s:
                    if self.owner_of(row, holder) is claim:
                        self.settle_segment(holder, row)

    def forget_segments(self, rows: Iterable[int]) -> None:
        """The rows are about to be released."""
        for row in rows:
            self._segment_owners.pop(row, None)

    def _claimed_among(self, holder: Holder, rows: IntArray) -> IntArray:
        return rows[(self._table.claimed[holder.word].take(rows) & holder.bit) != 0] if len(rows) else _NO_ROWS

    def _without_later(self, claim: HolderClaim, rows: IntArray) -> IntArray:
        marks = self._mark(rows)
        for later in reversed(self._by_holder[claim.holder.slot].values()):
            if later is claim:
                break
            marks[later.block_rows] = False
        own = rows[marks.take(rows)]
        marks[rows] = False
        return own

    def _mark(self, rows: IntArray) -> BoolArray:
        if len(self._marks) < self._table.capacity:
            self._marks = np.zeros(self._table.capacity, dtype=np.bool_)
        self._marks[rows] = True
        return self._marks

    def _set_deadline(self, claim: HolderClaim, deadline_s: float) -> None:
        claim.deadline_s = deadline_s
        heapq.heappush(self._deadlines, (deadline_s, claim.claim_id, claim))
