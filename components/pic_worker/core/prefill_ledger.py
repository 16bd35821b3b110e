"""What each request's prefill put into the engine's steps, from arrival to its end."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pic_worker.core.compute_work import StepLedger


@dataclass(frozen=True, slots=True)
class StepShare:
    """One request's part of a step."""

    request_id: str
    num_tokens: int
    attention_pairs: float


@dataclass(frozen=True, slots=True)
class StepTotals:
    num_tokens: int
    """Of all requests, in the engine's own pass and the connector's."""
    attention_pairs: float
    recomputed_tokens: int
    """Of these, the connector's."""


@dataclass(frozen=True, slots=True)
class FinishedStep:
    totals: StepTotals
    duration_s: float


@dataclass(slots=True)
class _Account:
    arrived_at_s: float
    ledger: StepLedger = field(default_factory=StepLedger)
    num_open_steps: int = 0


@dataclass(frozen=True, slots=True)
class _OpenStep:
    shares: tuple[StepShare, ...]
    totals: StepTotals
    began_at_s: float


class PrefillLedger:
    """Steps end in the order in which they began; several may be open, when the engine plans ahead."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._open: deque[_OpenStep] = deque()
        self._ended_at_s = 0.0

    def __len__(self) -> int:
        return len(self._accounts)

    def open_account(self, request_id: str, now_s: float) -> None:
        self._accounts.setdefault(request_id, _Account(now_s))

    def begin_step(self, shares: Iterable[StepShare], totals: StepTotals, now_s: float) -> None:
        """
        Args:
            shares: of requests with an account; of each at most one.
        """
        known = tuple(share for share in shares if share.request_id in self._accounts)
        for share in known:
            account = self._accounts[share.request_id]
            account.num_open_steps += 1
            if account.ledger.started_at_s is None:
                account.ledger.started_at_s = now_s
        self._open.append(_OpenStep(known, totals, now_s))

    def end_step(self, now_s: float) -> FinishedStep | None:
        """Closes the oldest open step and charges it; None where none is open."""
        if not self._open:
            return None
        step = self._open.popleft()
        # A step planned ahead waits for the one before it.
        duration_s = now_s - max(step.began_at_s, self._ended_at_s)
        self._ended_at_s = now_s
        for share in step.shares:
            account = self._accounts.get(share.request_id)
            if account is None:
                continue
            ledger = account.ledger
            account.num_open_steps -= 1
            ledger.num_steps += 1
            ledger.computed_tokens += share.num_tokens
            ledger.attention_pairs += share.attention_pairs
            ledger.step_tokens += step.totals.num_tokens
            ledger.step_pairs += step.totals.attention_pairs
            ledger.step_s += duration_s
        return FinishedStep(step.totals, duration_s)

    def has_open_steps(self, request_id: str) -> bool:
        return self._accounts[request_id].num_open_steps > 0

    def queued_s(self, request_id: str, now_s: float) -> float:
        """From arrival to the first step that worked on it, or until now."""
        account = self._accounts[request_id]
        started_at_s = account.ledger.started_at_s
        return (now_s if started_at_s is None else started_at_s) - account.arrived_at_s

    def close_account(self, request_id: str) -> StepLedger:
        return self._accounts.pop(request_id).ledger
