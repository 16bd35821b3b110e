"""Which prefix blocks live claims name."""

from collections.abc import Collection, Iterable

import numpy as np

from nebula_protocol.hashing import HashArray
from nebula_router.core.holder_claim import HolderClaim
from nebula_router.core.holder_table import HolderTable
from nebula_router.core.holders import Holder
from nebula_router.core.key_map import ABSENT, BoolArray, IntArray
from nebula_router.core.prefix_blocks import BlockRun, PrefixBlocks


class BlockClaims:
    """Keeps the table's `claimed` bits for blocks: one is set as long as a live claim of the holder names the block.

    Claims know their blocks, a thousand each, but blocks not their claims: few events ever ask for them.

    The blocks of a new prompt, most of a claim, are not entered at all but kept as one run under its first block:
    whoever shares any of them shares that one. They are entered when somebody gets there, a prompt or an event. So
    no deferred run begins with a block that has a row.
    """

    def __init__(self, table: HolderTable, blocks: PrefixBlocks) -> None:
        self._table = table
        self._blocks = blocks
        self._deferred: dict[int, HolderClaim] = {}
        self._marks: BoolArray = np.zeros(table.capacity, dtype=np.bool_)
        """By row, False between calls."""

    @property
    def num_deferred(self) -> int:
        """Claims with blocks that are not entered yet."""
        return len(self._deferred)

    def claim(self, claim: HolderClaim, rows: IntArray) -> None:
        """Claims those of the rows (none twice) that the holder's device tier has not. O(rows), vectorised."""
        word, bit = claim.holder.word, claim.holder.bit
        absent = rows[(self._table.device[word].take(rows) & bit) == 0]
        if len(absent):
            self._table.claimed[word][absent] |= bit
            claim.block_handles = np.concatenate([claim.block_handles, self._table.handles_of(absent)])

    def defer(self, claim: HolderClaim, run: BlockRun) -> None:
        """Claims consecutive blocks of which the first has no row."""
        first = int(run.keys[0])
        claim.deferred = run
        if first in self._deferred:
            self._enter(claim)
        else:
            self._deferred[first] = claim

    def reach(self, key: int) -> bool:
        """A prompt has come to a block that has no row. Whether it has one now, since a deferred run began there."""
        claim = self._deferred.pop(key, None)
        if claim is None:
            return False
        self._enter(claim)
        self.enter_reached()
        return True

    def enter_reached(self) -> None:
        """To be called when rows were made: enters the deferred runs whose first block has a row now."""
        while self._deferred:
            keys = np.fromiter(self._deferred, dtype=np.uint64, count=len(self._deferred))
            reached = keys[self._blocks.find(keys) != ABSENT].tolist()
            if not reached:
                return
            for key in reached:
                self._enter(self._deferred.pop(key))

    def advance(self, run: BlockRun, claims: Iterable[HolderClaim]) -> None:
        """The holder of these claims has the run: what they deferred of it needs no claim any more."""
        for claim in claims:
            deferred = claim.deferred
            if deferred is None:
                continue
            offset = int(deferred.depths[0]) - int(run.depths[0])
            if not 0 <= offset < len(run) or run.keys[offset] != deferred.keys[0]:
                continue
            num_common = _num_equal(run.keys[offset:], deferred.keys)
            self._drop_deferred(claim)
            if num_common < len(deferred):
                self.defer(claim, deferred[num_common:])

    def settle(self, holder: Holder, rows: IntArray, claims: Iterable[HolderClaim]) -> None:
        """The holder of these claims has the blocks: no claim is needed any more."""
        claimed = self._claimed_among(holder, rows)
        if len(claimed):
            self._table.claimed[holder.word][claimed] &= ~holder.bit
            self._strike(claimed, claims)

    def disprove(self, holder: Holder, rows: IntArray, claims: Collection[HolderClaim]) -> None:
        """The holder has the blocks no more: requests in flight will put them there again, finished ones will not."""
        claimed = self._claimed_among(holder, rows)
        if not len(claimed):
            return
        in_flight = [claim for claim in claims if claim.in_flight]
        finished = [claim for claim in claims if not claim.in_flight]
        self._strike(claimed, finished)
        gone = self._not_named(claimed, in_flight)
        self._table.claimed[holder.word][gone] &= ~holder.bit

    def disprove_deferred(self, claims: Iterable[HolderClaim]) -> None:
        """As `disprove`, for blocks without rows."""
        for claim in claims:
            if not claim.in_flight:
                self._drop_deferred(claim)

    def end(self, claim: HolderClaim, others: Iterable[HolderClaim]) -> IntArray:
        """Takes back what no other claim of the holder names, and returns those rows."""
        self._drop_deferred(claim)
        own = self._not_named(self._rows_of(claim), others)
        self._table.claimed[claim.holder.word][own] &= ~claim.holder.bit
        return own

    def _enter(self, claim: HolderClaim) -> None:
        if claim.deferred is not None:
            run, claim.deferred = claim.deferred, None
            self.claim(claim, self._blocks.find_or_add(run))

    def _drop_deferred(self, claim: HolderClaim) -> None:
        if claim.deferred is not None:
            del self._deferred[int(claim.deferred.keys[0])]
            claim.deferred = None

    def _rows_of(self, claim: HolderClaim) -> IntArray:
        rows = self._table.rows_of(claim.block_handles)
        alive: IntArray = rows[rows != ABSENT]
        return alive

    def _claimed_among(self, holder: Holder, rows: IntArray) -> IntArray:
        claimed: IntArray = rows[(self._table.claimed[holder.word].take(rows) & holder.bit) != 0]
        return claimed

    def _strike(self, rows: IntArray, claims: Iterable[HolderClaim]) -> None:
        """The claims name these rows no more."""
        marks = self._mark(rows)
        for claim in claims:
            named = self._rows_of(claim)
            claim.block_handles = self._table.handles_of(named[~marks.take(named)])
        marks[rows] = False

    def _not_named(self, rows: IntArray, claims: Iterable[HolderClaim]) -> IntArray:
        """Those of the rows that none of the claims names."""
        if not len(rows):
            return rows
        marks = self._mark(rows)
        for claim in claims:
            marks[self._rows_of(claim)] = False
        unnamed: IntArray = rows[marks.take(rows)]
        marks[rows] = False
        return unnamed

    def _mark(self, rows: IntArray) -> BoolArray:
        if len(self._marks) < self._table.capacity:
            self._marks = np.zeros(self._table.capacity, dtype=np.bool_)
        self._marks[rows] = True
        return self._marks


def _num_equal(first: HashArray, second: HashArray) -> int:
    """Length of the common beginning."""
    shared = min(len(first), len(second))
    differing = np.flatnonzero(first[:shared] != second[:shared])
    return int(differing[0]) if len(differing) else shared
