"""Leases given to peers: each ends by itself."""

from typing import NewType

from pic_worker.core.deadline import is_due

LeaseId = NewType("LeaseId", int)
"""Names one pin of entries in the store; never used twice."""


class LeaseTable:
    """All leases last equally long from their last renewal, so the first in the table is the first to end."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._ends_at_s: dict[LeaseId, float] = {}

    def __len__(self) -> int:
        return len(self._ends_at_s)

    def grant(self, lease_id: LeaseId, now_s: float) -> None:
        self._ends_at_s[lease_id] = now_s + self._lease_s

    def holds(self, lease_id: LeaseId, now_s: float) -> bool:
        ends_at_s = self._ends_at_s.get(lease_id)
        return ends_at_s is not None and not is_due(ends_at_s, now_s)

    def renew(self, lease_id: LeaseId, now_s: float) -> bool:
        """Whether it had not ended yet."""
        if not self.holds(lease_id, now_s):
            return False
        del self._ends_at_s[lease_id]
        self._ends_at_s[lease_id] = now_s + self._lease_s
        return True

    def end(self, lease_id: LeaseId) -> bool:
        """Whether it was still in the table: only then is its pin to be undone."""
        return self._ends_at_s.pop(lease_id, None) is not None

    def take_ended(self, now_s: float) -> tuple[LeaseId, ...]:
        """Takes out those whose time is over."""
        ended: list[LeaseId] = []
        for lease_id, ends_at_s in self._ends_at_s.items():
            if not is_due(ends_at_s, now_s):
                break
            ended.append(lease_id)
        for lease_id in ended:
            del self._ends_at_s[lease_id]
        return tuple(ended)

    def next_end_s(self) -> float | None:
        return next(iter(self._ends_at_s.values()), None)
