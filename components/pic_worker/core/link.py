"""One worker's link to the others: who may send or receive when."""

from nebula_protocol.cost import LinkFit
from pic_worker.core.stream import Production, Stream


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

    def stream(self, num_bytes: int, pieces: int, production: Production | None, now_s: float) -> Stream:
        """Sends `num_bytes` as `reserve` does, layer by layer; what is being computed leaves as it is computed.

        The floor is the time that every byte travels, so the last layer of a computation is there that much and its
        own bytes after the computation.
        """
        last_at_s = self.reserve(num_bytes, now_s)
        bytes_s = num_bytes / self._fit.bytes_per_s
        first_at_s = last_at_s - bytes_s * (pieces - 1) / pieces
        if production is None:
            return Stream(first_at_s, last_at_s)
        piece_s = bytes_s / pieces + self._fit.floor_s
        first_layer_at_s = production.begins_at_s + (production.ends_at_s - production.begins_at_s) / pieces
        return Stream(max(first_at_s, first_layer_at_s + piece_s), max(last_at_s, production.ends_at_s + piece_s))

    def receive(self, num_bytes: int, now_s: float) -> float:
        """Takes in bytes whose sender has just finished sending; returns when they are here.

        They flowed while they were sent, so an idle link adds nothing; one that was busy with other senders' bytes
        meanwhile adds what it could not take in.
        """
        self._free_at_s = max(now_s, self._free_at_s + num_bytes / self._fit.bytes_per_s)
        return self._free_at_s

    def take(self, num_bytes: int, stream: Stream, now_s: float) -> Stream:
        """Takes in bytes that another link is going to send, or has sent; returns when they are here.

        They flow from now on, and share this link with those that flow already: an idle link adds nothing to what the
        sender needs.
        """
        if stream.last_at_s <= now_s:
            arrived_at_s = self.receive(num_bytes, now_s)
            return Stream(arrived_at_s, arrived_at_s)
        self._free_at_s = max(now_s, self._free_at_s) + num_bytes / self._fit.bytes_per_s
        return Stream(stream.first_at_s, max(stream.last_at_s, self._free_at_s + self._fit.floor_s))

    def free_in_s(self, now_s: float) -> float:
        """Seconds until a reservation made now would begin."""
        return max(0.0, self._free_at_s - now_s)
