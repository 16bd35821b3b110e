"""Which segments live claims name."""

from collections.abc import Iterable

from nebula_router.core.holder_claim import HolderClaim
from nebula_router.core.holder_table import HolderTable
from nebula_router.core.holders import Holder
from nebula_router.core.key_map import IntArray


class SegmentClaims:
    """Keeps the table's `claimed` bits for segments: one is set as long as a live claim of the holder names it."""

    def __init__(self, table: HolderTable) -> None:
        self._table = table
        self._claims: dict[int, dict[int, list[HolderClaim]]] = {}
        """By row and slot."""

    def __len__(self) -> int:
        """Segments that somebody claims."""
        return len(self._claims)

    def claim(self, claim: HolderClaim, rows: IntArray, ready_at_s: float) -> None:
        slot = claim.holder.slot
        for row in rows.tolist():
            if row not in claim.ready_at_s:
                self._claims.setdefault(row, {}).setdefault(slot, []).append(claim)
            claim.ready_at_s[row] = ready_at_s
        self._table.claimed[claim.holder.word][rows] |= claim.holder.bit

    def expected_at_s(self, row: int, slot: int) -> float | None:
        """When the first of the requests in flight will have put it there; None when a finished one has."""
        claims = self._claims[row][slot]
        if len(claims) > 1:
            return min(claim.ready_at_s[row] for claim in claims) if all(one.in_flight for one in claims) else None
        return claims[0].ready_at_s[row] if claims[0].in_flight else None

    def settle(self, holder: Holder, row: int) -> None:
        """The holder has it, or will not have it: no claim is needed any more."""
        by_slot = self._claims.get(row)
        if by_slot is None or holder.slot not in by_slot:
            return
        for claim in by_slot.pop(holder.slot):
            del claim.ready_at_s[row]
        self._unclaim(holder, row, by_slot)

    def disprove(self, holder: Holder, row: int) -> None:
        """The holder does not have it: requests in flight will put it there again, finished ones will not."""
        for claim in list(self._claims.get(row, {}).get(holder.slot, ())):
            if not claim.in_flight:
                self.strike(claim, row)

    def strike(self, claim: HolderClaim, row: int) -> None:
        """The claim does not name the segment any more."""
        del claim.ready_at_s[row]
        by_slot = self._claims[row]
        claims = by_slot[claim.holder.slot]
        claims.remove(claim)
        if not claims:
            del by_slot[claim.holder.slot]
            self._unclaim(claim.holder, row, by_slot)

    def end(self, claim: HolderClaim) -> list[int]:
        """Takes all of the claim back, and returns the rows."""
        rows = list(claim.ready_at_s)
        for row in rows:
            self.strike(claim, row)
        return rows

    def disprove_all(self, claims: Iterable[HolderClaim]) -> None:
        for claim in claims:
            if not claim.in_flight:
                self.end(claim)

    def forget(self, rows: Iterable[int]) -> None:
        """The rows are about to be released, and with them all claims on them."""
        for row in rows:
            for claims in self._claims.pop(row, {}).values():
                for claim in claims:
                    del claim.ready_at_s[row]

    def _unclaim(self, holder: Holder, row: int, by_slot: dict[int, list[HolderClaim]]) -> None:
        self._table.claimed[holder.word, row] &= ~holder.bit
        if not by_slot:
            del self._claims[row]
