"""One worker's link to the others: who may send or receive when."""

from nebula_protocol.cost import LinkFit


class Link:
    """One direction of a link. Transfers are served one after another at full bandwidth, in order of reservation.

    Served in turn or side by side, the last of several transfers ends at the same time; in turn, the others end
    earlier, and a finish time once given stays true when more transfers follow.
    """

    def __init__(self, fit: LinkFit) -> None:
        self._fit = fit
        self._free_at_s = 0.0

    def reserve(self, num_bytes: int, now_s: float) -> float:
        """Sends `num_bytes` as soon as the link is free; returns when the last byte has left and travelled."""
        start_s = max(now_s, self._free_at_s)
        self._free_at_s = start_s + num_bytes / self._fit.bytes_per_s
        return self._free_at_s + self._fit.floor_s

    def receive(self, num_bytes: int, now_s: float) -> float:
        """Takes in bytes whose sender has just finished sending; returns when they are here.

        They flowed while they were sent, so an idle link adds nothing; one that was busy with other senders' bytes
        meanwhile adds what it could not take in.
        """
        self._free_at_s = max(now_s, self._free_at_s + num_bytes / self._fit.bytes_per_s)
        return self._free_at_s

    def free_in_s(self, now_s: float) -> float:
        """Seconds until a reservation made now would begin."""
        return max(0.0, self._free_at_s - now_s)
