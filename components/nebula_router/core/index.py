"""The merged index: what holders have confirmed, and what is claimed for them. Event ids and requests are above it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from nebula_protocol.card import WorkerCard
from nebula_protocol.events import BlockEntry, SegmentEntry
from nebula_protocol.hashing import HashArray
from nebula_protocol.ids import DomainId, PrefixKey, RemovalReason, RequestId, SegmentHash, Tier, WorkerWithDpRank
from nebula_router.core.block_names import BlockNames
from nebula_router.core.claims import ClaimBook
from nebula_router.core.evidence import LostBlocks, LostSegment
from nebula_router.core.holder_claim import HolderClaim
from nebula_router.core.holder_table import HolderTable, Kind
from nebula_router.core.holders import Holder, Holders
from nebula_router.core.key_map import ABSENT, BoolArray, IntArray
from nebula_router.core.prefix_blocks import BlockRun, PrefixBlocks
from nebula_router.core.segment_entries import SegmentEntries
from nebula_router.core.state_blocks import ON_DEVICE, ON_HOST, Place, place_blocks

_SWEEP_PERIOD_S = 1.0


@dataclass(frozen=True, slots=True)
class Removal:
    """What events took away."""

    num_removed: int
    lost: LostBlocks | LostSegment | None = None
    """Entries that nobody has any more."""


@dataclass(frozen=True, slots=True)
class Expired:
    num_claims: int
    holders_with_unknown_blocks: tuple[Holder, ...]
    """Their stores have blocks that were never announced."""


class Index:
    """Entries with holders. A row lives exactly as long as some holder has, expects or may be keeping the entry.

    Memory per entry: 120 to 160 bytes for a block and about 400 for a segment with up to 64 holders, 32 more for every
    further 64, and 43 to 85 for each holder's name of a block. A block of which a holder uses two names counts once for
    it.
    """

    def __init__(self, *, max_entries: int, max_holders: int, ttl_s: float) -> None:
        self.table = HolderTable(max_entries)
        self.blocks = PrefixBlocks(self.table)
        self.segments = SegmentEntries(self.table)
        self.claims = ClaimBook(self.table, self.blocks, ttl_s)
        self.holders = Holders(max_holders)
        self._names: dict[int, BlockNames] = {}
        self._next_sweep_s = -np.inf
        self.table.on_release(Kind.BLOCK, self.blocks.forget)
        self.table.on_release(Kind.SEGMENT, self._forget_segments)

    # ---- holders ----

    def add_holder(self, worker: WorkerWithDpRank, card: WorkerCard) -> Holder:
        """
        Raises:
            TooManyWorkersError: no bit is left.
        """
        holder = self.holders.add(worker, card)
        self.table.add_words(self.holders.num_words)
        self._names[holder.slot] = BlockNames(self.table)
        return holder

    def remove_holder(self, holder: Holder) -> None:
        """Forgets all that it had or was expected to have. O(capacity)."""
        self.claims.end_all_of(holder)
        self._clear_columns(holder)
        del self._names[holder.slot]
        self.holders.remove(holder)
        self.table.release_empty(self.table.used_rows())

    def replace_holder(self, holder: Holder, blocks: Sequence[BlockEntry], segments: Sequence[SegmentEntry]) -> None:
        """The holder has this and nothing else; its claims stay. O(capacity + entries)."""
        own = self._names[holder.slot]
        placed = place_blocks(blocks, lambda names: self._recall(own, names))
        self._clear_columns(holder)
        own.clear()
        own.mark_unplaced(placed.unplaced)
        run = BlockRun.of_places(placed.accumulators, placed.depths, holder.salt, holder.block_size_tokens)
        for start in range(0, len(run), self.table.max_batch):
            part = slice(start, start + self.table.max_batch)
            rows = self.blocks.find_or_add(run[part])
            on_device = rows[(placed.tiers[part] & ON_DEVICE) != 0]
            on_host = rows[(placed.tiers[part] & ON_HOST) != 0]
            self.table.device[holder.word][on_device] |= holder.bit
            self.table.host[holder.word][on_host] |= holder.bit
            self.claims.settle_blocks(holder, on_device)
            own.put(placed.names[part], rows)
        self.claims.blocks.enter_reached()
        for entry in segments:
            self.store_segment(holder, entry.domain_id, entry.segment_hash, entry.num_tokens)
        self.table.release_empty(self.table.used_rows())

    # ---- prefix blocks ----

    def store_blocks(
        self, holder: Holder, parent_name: int | None, names: HashArray, tokens_hashes: HashArray, tier: Tier
    ) -> int | None:
        """Consecutive blocks of one chain appeared in a tier; how many were not there before.

        None when the parent is unknown, so that the blocks have no place; they are remembered as such.
        """
        own = self._names[holder.slot]
        run = self._run_behind(holder, parent_name, tokens_hashes[: self.table.max_batch])
        if run is None:
            own.mark_unplaced(names.tolist())
            return None
        names = names[: len(run)]
        if tier is Tier.DEVICE:
            self.claims.advance_blocks(holder, run)
        rows = self.blocks.find_or_add(run)
        if tier is Tier.DEVICE:
            self.claims.settle_blocks(holder, rows)
        num_new = self._add_bits(self._column(tier), holder, rows)
        own.put(names, rows)
        early = own.take_early(names)
        if early is not None:
            self._add_bits(self.table.host, holder, rows[early])
        self.claims.blocks.enter_reached()
        return num_new

    def store_host_blocks(self, holder: Holder, names: HashArray, now_s: float) -> int:
        """Blocks that the device tier has or had are in the store; how many were not there before."""
        own = self._names[holder.slot]
        rows = own.rows_of(names)
        known = rows != ABSENT
        if not known.all():
            own.expect(names[~known].tolist(), now_s)
            rows = rows[known]
        return self._add_bits(self.table.host, holder, rows)

    def remove_device_blocks(self, holder: Holder, names: HashArray, now_s: float) -> Removal:
        """Blocks left the engine's cache. Where there is a store they may turn up in it for a while yet."""
        own = self._names[holder.slot]
        names, rows = self._known(own, names)
        was_there = self._remove_bits(self.table.device, holder, rows)
        self.claims.disprove_blocks(holder, rows)
        elsewhere = (self.table.host[holder.word].take(rows) | self.table.leaving[holder.word].take(rows)) & holder.bit
        departing = was_there & (elsewhere == 0) & holder.has_store
        if departing.any():
            self.table.leaving[holder.word][rows[departing]] |= holder.bit
            own.depart(names[departing], rows[departing], now_s)
        self._drop_names(own, holder, names, rows)
        self.table.release_empty(rows)
        return Removal(int(np.count_nonzero(was_there)))

    def remove_host_blocks(self, holder: Holder, names: HashArray, reason: RemovalReason) -> Removal:
        own = self._names[holder.slot]
        own.forget_early(names.tolist())
        names, rows = self._known(own, names)
        was_there = self._remove_bits(self.table.host, holder, rows)
        self._drop_names(own, holder, names, rows)
        empty = self.table.empty_among(rows)
        lost = self._lost_blocks(empty, holder, reason) if len(empty) else None
        self.table.release(empty)
        return Removal(int(np.count_nonzero(was_there)), lost)

    # ---- segments ----

    def store_segment(self, holder: Holder, domain_id: DomainId, segment_hash: SegmentHash, num_tokens: int) -> bool:
        """Whether it was not there before."""
        row = int(self.segments.find_or_add(domain_id, ((segment_hash, num_tokens),))[0])
        self.claims.segments.settle(holder, row)
        is_new = not self.has_segment(holder, row)
        self.table.host[holder.word, row] |= holder.bit
        return is_new

    def remove_segment(
        self, holder: Holder, domain_id: DomainId, segment_hash: SegmentHash, reason: RemovalReason
    ) -> Removal:
        """It is not at the holder, and no finished request has put it there; one in flight still may."""
        row = self.segments.find(domain_id, segment_hash)
        if row is None:
            return Removal(0)
        was_there = self.has_segment(holder, row)
        self.table.host[holder.word, row] &= ~holder.bit
        self.claims.segments.disprove(holder, row)
        num_tokens = self.segments.identity_of(row).num_tokens
        if self.table.release_empty(np.array([row], dtype=np.int64)):
            return Removal(int(was_there), LostSegment(domain_id, segment_hash, num_tokens, reason))
        return Removal(int(was_there))

    def has_segment(self, holder: Holder, row: int) -> bool:
        """Confirmed by an event."""
        return bool(self.table.host[holder.word, row] & holder.bit)

    def has_other_holder(self, domain_id: DomainId, segment_hash: SegmentHash, holder: Holder | None) -> bool:
        """Whether another holder than this one has the segment or is about to."""
        row = self.segments.find(domain_id, segment_hash)
        if row is None:
            return False
        bits = self.table.host[:, row] | self.table.claimed[:, row]
        if holder is not None:
            bits[holder.word] &= ~holder.bit
        return bool(bits.any())

    # ---- a tier at once ----

    def clear_device(self, holder: Holder) -> Removal:
        """O(capacity)."""
        rows = self.table.rows_of_kind(Kind.BLOCK)
        was_there = self._remove_bits(self.table.device, holder, rows)
        self.claims.disprove_all_blocks(holder, rows)
        self._names[holder.slot].retain((self.table.host | self.table.leaving)[holder.word], holder.bit)
        self.table.release_empty(rows)
        return Removal(int(np.count_nonzero(was_there)))

    def clear_store(self, holder: Holder) -> Removal:
        """Blocks and segments. O(capacity)."""
        rows = self.table.used_rows()
        was_there = self._remove_bits(self.table.host, holder, rows)
        self.claims.disprove_all_segments(holder)
        self._names[holder.slot].retain((self.table.device | self.table.leaving)[holder.word], holder.bit)
        self.table.release_empty(rows)
        return Removal(int(np.count_nonzero(was_there)))

    # ---- claims ----

    def claim_blocks(
        self, holder: Holder, request_id: RequestId, run: BlockRun, known_rows: IntArray, ready_at_s: float
    ) -> HolderClaim:
        """Claims those of the blocks that are not on the holder's device tier.

        Args:
            known_rows: of the leading blocks that have one; the block behind them has none.
        """
        claim = self.claims.open(holder, request_id, ready_at_s)
        self.claims.blocks.claim(claim, known_rows)
        if len(known_rows) < min(len(run), self.table.max_batch):
            self.claims.blocks.defer(claim, run[len(known_rows) : self.table.max_batch])
        return claim

    def claim_segments(
        self, claim: HolderClaim, domain_id: DomainId, segments: Sequence[tuple[SegmentHash, int]], ready_at_s: float
    ) -> None:
        """Claims those segments, (hash, tokens) each, that the holder has not. Vectorised."""
        claim.segment_hashes.update(segment_hash for segment_hash, _ in segments)
        rows = self.segments.find_or_add(domain_id, segments)
        absent = (self.table.host[claim.holder.word].take(rows) & claim.holder.bit) == 0
        self.claims.claim_segments(claim, rows[absent], ready_at_s)

    def expire(self, now_s: float) -> Expired:
        """What waited too long. O(expired); once a second O(holders)."""
        num_claims = self.claims.expire(now_s)
        overdue: list[Holder] = []
        if now_s >= self._next_sweep_s:
            self._next_sweep_s = now_s + _SWEEP_PERIOD_S
            for holder in self.holders:
                own = self._names[holder.slot]
                self._end_departures(holder, own, now_s)
                if own.drop_overdue(now_s):
                    overdue.append(holder)
        return Expired(num_claims, tuple(overdue))

    # ---- inside ----

    def _column(self, tier: Tier) -> HashArray:
        return self.table.device if tier is Tier.DEVICE else self.table.host

    def _run_behind(self, holder: Holder, parent_name: int | None, tokens_hashes: HashArray) -> BlockRun | None:
        accumulator, depth = 0, -1
        if parent_name is not None:
            place = self._recall(self._names[holder.slot], np.array([parent_name], dtype=np.uint64)).get(parent_name)
            if place is None:
                return None
            accumulator, depth = place.accumulator, place.depth
        return BlockRun.of_chain(
            tokens_hashes,
            holder.salt,
            holder.block_size_tokens,
            parent_accumulator=accumulator,
            start_block=depth + 1,
        )

    def _recall(self, own: BlockNames, names: HashArray) -> dict[int, Place]:
        rows = own.rows_of(names)
        known = rows != ABSENT
        rows = rows[known]
        accumulators, depths = self.blocks.accumulators_of(rows), self.blocks.depths_of(rows)
        places = map(Place, accumulators.tolist(), depths.tolist())
        return dict(zip(names[known].tolist(), places, strict=True))

    def _known(self, own: BlockNames, names: HashArray) -> tuple[HashArray, IntArray]:
        """The names that stand for a row, and those rows; the others are dropped for good."""
        rows = own.rows_of(names)
        known = rows != ABSENT
        if known.all():
            return names, rows
        own.drop(names[~known])
        own.forget_unplaced(names[~known].tolist())
        return names[known], rows[known]

    def _drop_names(self, own: BlockNames, holder: Holder, names: HashArray, rows: IntArray) -> None:
        """Of rows that the holder has in no tier any more."""
        table, word = self.table, holder.word
        bits = table.device[word].take(rows) | table.host[word].take(rows) | table.leaving[word].take(rows)
        own.drop(names[(bits & holder.bit) == 0])

    def _add_bits(self, column: HashArray, holder: Holder, rows: IntArray) -> int:
        """The holder has the blocks in this tier; how many it did not have there before."""
        num_before = int(np.count_nonzero(column[holder.word].take(rows) & holder.bit))
        column[holder.word][rows] |= holder.bit
        self.table.leaving[holder.word][rows] &= ~holder.bit
        return len(rows) - num_before

    def _remove_bits(self, column: HashArray, holder: Holder, rows: IntArray) -> BoolArray:
        """Which of the rows had the bit."""
        was_there: BoolArray = (column[holder.word].take(rows) & holder.bit) != 0
        column[holder.word][rows] &= ~holder.bit
        return was_there

    def _clear_columns(self, holder: Holder) -> None:
        for column in (self.table.device, self.table.host, self.table.leaving):
            column[holder.word] &= ~holder.bit

    def _end_departures(self, holder: Holder, own: BlockNames, now_s: float) -> None:
        for departure in own.take_departed(now_s):
            rows = self.table.rows_of(departure.handles)
            rows = rows[rows != ABSENT]
            self.table.leaving[holder.word][rows] &= ~holder.bit
            self._drop_names(own, holder, *self._known(own, departure.names))
            self.table.release_empty(rows)

    def _lost_blocks(self, rows: IntArray, holder: Holder, reason: RemovalReason) -> LostBlocks:
        keys = cast("list[PrefixKey]", self.blocks.keys_of(rows).tolist())
        return LostBlocks(tuple(keys), tuple(self.blocks.depths_of(rows).tolist()), holder.block_size_tokens, reason)

    def _forget_segments(self, rows: IntArray) -> None:
        self.claims.segments.forget(rows.tolist())
        self.segments.forget(rows)
