"""Which segments live claims name."""

from collections.abc import Iterable

from nebula_router.core.holder_claim import HolderClaim
from nebula_router.core.holder_table import HolderTable
from nebula_router.core.holders import Holder
from nebula_router.core.key_map import IntArray


class SegmentClaims:
    """Keeps the table's `claimed` bits for segments, and for each the claim that set it: the latest, until settled."""

    def __init__(self, table: HolderTable) -> None:
        self._table = table
        self._owners: dict[int, dict[int, HolderClaim]] = {}

    def __len__(self) -> int:
        """Segments that somebody claims."""
        return len(self._owners)

    def claim(self, claim: HolderClaim, rows: IntArray, ready_at_s: float) -> None:
        slot, owners = claim.holder.slot, self._owners
        listed = rows.tolist()
        claim.ready_at_s.update(dict.fromkeys(listed, ready_at_s))
        for row in listed:
            owners.setdefault(row, {})[slot] = claim
        self._table.claimed[claim.holder.word][rows] |= claim.holder.bit

    def owner_of(self, row: int, holder: Holder) -> HolderClaim | None:
        owners = self._owners.get(row)
        return owners.get(holder.slot) if owners else None

    def owners_of(self, row: int) -> dict[int, HolderClaim]:
        """By slot."""
        return self._owners[row]

    def settle(self, holder: Holder, row: int) -> None:
        """The cell is nobody's any more."""
        owners = self._owners.get(row)
        if owners and owners.pop(holder.slot, None):
            self._table.claimed[holder.word, row] &= ~holder.bit
            if not owners:
                del self._owners[row]

    def disprove(self, holder: Holder, row: int) -> None:
        """The segment is not there: the claim of a finished request falls, one in flight will put it there again."""
        owner = self.owner_of(row, holder)
        if owner and not owner.in_flight:
            self.settle(holder, row)

    def disprove_all(self, claims: Iterable[HolderClaim]) -> None:
        for claim in claims:
            if not claim.in_flight:
                self.end(claim)

    def end(self, claim: HolderClaim) -> list[int]:
        """Takes the claim's cells back, and returns their rows."""
        owned = self.owned_by(claim)
        for row in owned:
            self.settle(claim.holder, row)
        return owned

    def owned_by(self, claim: HolderClaim) -> list[int]:
        return [row for row in claim.ready_at_s if self.owner_of(row, claim.holder) is claim]

    def forget(self, rows: Iterable[int]) -> None:
        """The rows are about to be released."""
        for row in rows:
            self._owners.pop(row, None)
