"""Which decode worker takes over: the one with the least KV to read per step."""

from nebula_protocol.ids import RequestId, WorkerId

# Longer than discovery needs to drop a crashed worker.
_SUSPICION_S = 15.0


class DecodeChoice:
    """Balances the tokens in flight. A decode step reads all running requests' KV, so tokens are the load."""

    def __init__(self) -> None:
        self._running: dict[RequestId, tuple[WorkerId, int]] = {}
        self._tokens: dict[WorkerId, int] = {}
        self._suspect_until_s: dict[WorkerId, float] = {}

    def choose(
        self, request_id: RequestId, live: frozenset[WorkerId], num_tokens: int, now_s: float
    ) -> WorkerId | None:
        """The least loaded live worker, and records the request there. None when nobody is alive.

        A worker that broke a request lately is taken only if there is no other.
        """
        trusted = {worker for worker in live if self._suspect_until_s.get(worker, now_s) <= now_s}
        chosen = min(trusted or live, key=lambda worker: (self._tokens.get(worker, 0), worker), default=None)
        if chosen is not None:
            self._running[request_id] = (chosen, num_tokens)
            self._tokens[chosen] = self._tokens.get(chosen, 0) + num_tokens
        return chosen

    def record_end(self, request_id: RequestId) -> None:
        """The request has left its worker, however it ended."""
        ended = self._running.pop(request_id, None)
        if ended is None:
            return
        worker, num_tokens = ended
        left = self._tokens[worker] - num_tokens
        if left:
            self._tokens[worker] = left
        else:
            del self._tokens[worker]

    def suspect(self, worker_id: WorkerId, now_s: float) -> None:
        """The worker broke a request."""
        for known, until_s in tuple(self._suspect_until_s.items()):
            if until_s <= now_s:
                del self._suspect_until_s[known]
        self._suspect_until_s[worker_id] = now_s + _SUSPICION_S
