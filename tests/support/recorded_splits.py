"""A `SplitSink` and a `ReviewSink` within one process."""

from nebula_protocol.events import SplitReview
from nebula_protocol.ids import WorkerId


class RecordedSplits:
    def __init__(self) -> None:
        self.sent: list[tuple[WorkerId, float]] = []

    async def send_split(self, worker_id: WorkerId, prefix_ratio: float) -> None:
        self.sent.append((worker_id, prefix_ratio))

    def take(self) -> list[tuple[WorkerId, float]]:
        """What was sent since the last call."""
        sent, self.sent = self.sent, []
        return sent


class RecordedReviews:
    def __init__(self) -> None:
        self.published: list[SplitReview] = []

    async def publish_review(self, review: SplitReview) -> None:
        self.published.append(review)
