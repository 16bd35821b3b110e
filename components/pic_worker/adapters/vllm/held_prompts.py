"""Which prompts' KV waits for a decode worker."""

from dataclasses import dataclass, field

from nebula_protocol.ids import RequestId

_TRANSFER_S = 5.0
"""A transfer that began is given so long before it counts as over, whether or not its end is told."""


@dataclass(slots=True)
class HeldPrompts:
    """The engine frees the KV by itself; this only tells others what it should still have."""

    hold_s: float
    _prompts: dict[RequestId, "_Held"] = field(default_factory=dict)

    def hold(self, request_id: RequestId, num_tokens: int, now_s: float) -> None:
        self._prompts[request_id] = _Held(num_tokens, now_s + self.hold_s)

    def begin_transfer(self, request_id: RequestId, now_s: float) -> int:
        """The prompt's tokens; 0 when it is no longer held."""
        self._drop_expired(now_s)
        held = self._prompts.get(request_id)
        if held is None:
            return 0
        held.until_s = now_s + _TRANSFER_S
        return held.num_tokens

    def end_transfer(self, request_id: RequestId) -> int:
        """The prompt's tokens; 0 when it was held no longer."""
        held = self._prompts.pop(request_id, None)
        return 0 if held is None else held.num_tokens

    def count(self, now_s: float) -> int:
        self._drop_expired(now_s)
        return len(self._prompts)

    def _drop_expired(self, now_s: float) -> None:
        for request_id in [request_id for request_id, held in self._prompts.items() if held.until_s <= now_s]:
            del self._prompts[request_id]


@dataclass(slots=True)
class _Held:
    num_tokens: int
    until_s: float
