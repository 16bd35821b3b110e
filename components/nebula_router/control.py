"""The control loop: tells workers how to divide their stores, whenever that changes and whoever comes new, and readers
what each window of requests said."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from nebula_protocol.events import SplitReview, SplitVerdict
from nebula_protocol.ids import WorkerEpoch, WorkerId
from nebula_router.core.capacity import SplitController
from nebula_router.decide import RouterState
from nebula_router.metrics import RouterMetrics
from nebula_router.ports import Clock, ReviewSink, SplitSink

log = structlog.get_logger()

_PERIOD_S = 0.2
# Nobody confirms what workers are told, so all of it is told again from time to time.
_REPEAT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Told:
    epoch: WorkerEpoch
    prefix_ratio: float
    at_s: float


class SplitControl:
    """Follows a `SplitController`, which moves with the requests that the router's state learns from."""

    def __init__(
        self,
        split: SplitController,
        *,
        state: RouterState,
        sink: SplitSink,
        reviews: ReviewSink | None,
        metrics: RouterMetrics,
        clock: Clock,
        steers: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            steers: Whether this router is the one of several that tells the workers.
        """
        self._steers = steers
        self._split = split
        self._state = state
        self._sink = sink
        self._reviews = reviews
        self._metrics = metrics
        self._clock = clock
        self._told: dict[WorkerId, _Told] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self._steers():
                await self.tell_workers()
            await self.tell_readers()
            await asyncio.sleep(_PERIOD_S)

    async def tell_workers(self) -> None:
        """Sends the split to each worker that has another one, or may not have heard."""
        prefix_ratio, now_s = self._split.prefix_ratio, self._clock()
        self._metrics.set_split(prefix_ratio)
        epochs = self._state.worker_epochs()
        self._told = {worker_id: told for worker_id, told in self._told.items() if worker_id in epochs}
        for worker_id, epoch in epochs.items():
            told = self._told.get(worker_id)
            is_current = told is not None and (told.epoch, told.prefix_ratio) == (epoch, prefix_ratio)
            if told is None or not is_current or now_s - told.at_s >= _REPEAT_S:
                await self._sink.send_split(worker_id, prefix_ratio)
                self._told[worker_id] = _Told(epoch, prefix_ratio, now_s)

    async def tell_readers(self) -> None:
        """Reports every window that ended since the last call."""
        for review in self._split.take_reviews():
            self._metrics.count_split_review(review.verdict)
            if review.verdict is SplitVerdict.MOVED:
                _log_move(review)
            if self._reviews is not None:
                await self._reviews.publish_review(review)


def _log_move(review: SplitReview) -> None:
    log.info(
        "split_moved",
        prefix_ratio=round(review.prefix_ratio, 4),
        from_prefix_ratio=round(review.from_prefix_ratio, 4),
        gain_ratio=round(review.gain_ratio, 4),
        ghost_prefix_tokens=review.ghost_prefix_tokens,
        ghost_segment_tokens=review.ghost_segment_tokens,
        num_requests=review.num_requests,
    )
