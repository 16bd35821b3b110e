"""What became of one request of a replay."""

from dataclasses import dataclass

from nebula_protocol.receipt import Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """Times are seconds of the client's clock from the start of the replay, not scaled."""

    position: int
    """In the replayed part of the trace, from 0."""
    prompt_tokens: int
    scheduled_s: float
    sent_s: float
    first_content_s: float | None
    finished_s: float
    receipt: Receipt | None
    error: str | None

    @property
    def is_ok(self) -> bool:
        return self.error is None

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_content_s is None else self.first_content_s - self.sent_s

    @property
    def send_delay_s(self) -> float:
        """How much later than scheduled the client sent it."""
        return self.sent_s - self.scheduled_s
