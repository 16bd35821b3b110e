"""What transfers have shown of the way between workers, and whether another one is worth it."""

from pic_worker.core.deadline import is_due

_MEMORY_S = 30.0
"""An older measurement says nothing: a way once slow would never be tried again."""
_WEIGHT = 0.3
"""Of the newest transfer in the running mean."""


class TransferSpeed:
    """A running mean of bytes a second, everything between the question and the last byte included."""

    def __init__(self) -> None:
        self._bytes_per_s: float | None = None
        self._forget_at_s = 0.0

    def record(self, num_bytes: int, duration_s: float, now_s: float) -> None:
        if num_bytes <= 0 or duration_s <= 0:
            return
        seen = num_bytes / duration_s
        before = self.bytes_per_s(now_s)
        self._bytes_per_s = seen if before is None else before + _WEIGHT * (seen - before)
        self._forget_at_s = now_s + _MEMORY_S

    def bytes_per_s(self, now_s: float) -> float | None:
        """None: nothing was seen lately."""
        if self._bytes_per_s is None or is_due(self._forget_at_s, now_s):
            return None
        return self._bytes_per_s

    def is_worth_it(self, num_bytes: int, compute_s: float, veto_ratio: float, now_s: float) -> bool:
        """False where the fetch would clearly take longer than computing; when nothing is known it is tried."""
        bytes_per_s = self.bytes_per_s(now_s)
        return bytes_per_s is None or num_bytes / bytes_per_s <= veto_ratio * compute_s
