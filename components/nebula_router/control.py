"""The control loop: tells workers how to divide their stores, whenever that changes and whoever comes new."""

import asyncio
from dataclasses import dataclass

import structlog

from nebula_protocol.ids import WorkerEpoch, WorkerId
from nebula_router.core.capacity import SplitController
from nebula_router.decide import RouterState
from nebula_router.metrics import RouterMetrics
from nebula_router.ports import Clock, SplitSink

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
        metrics: RouterMetrics,
        clock: Clock,
    ) -> None:
        self._split = split
        self._state = state
        self._sink = sink
        self._metrics = metrics
        self._clock = clock
        self._told: dict[WorkerId, _Told] = {}
        self._logged_ratio = split.prefix_ratio

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.tell_workers()
            await asyncio.sleep(_PERIOD_S)

    async def tell_workers(self) -> None:
        """Sends the split to each worker that has another one, or may not have heard."""
        prefix_ratio, now_s = self._split.prefix_ratio, self._clock()
        self._report(prefix_ratio)
        epochs = self._state.worker_epochs()
        self._told = {worker_id: told for worker_id, told in self._told.items() if worker_id in epochs}
        for worker_id, epoch in epochs.items():
            told = self._told.get(worker_id)
            is_current = told is not None and (told.epoch, told.prefix_ratio) == (epoch, prefix_ratio)
            if told is None or not is_current or now_s - told.at_s >= _REPEAT_S:
                await self._sink.send_split(worker_id, prefix_ratio)
                self._told[worker_id] = _Told(epoch, prefix_ratio, now_s)

    def _report(self, prefix_ratio: float) -> None:
        self._metrics.set_split(prefix_ratio)
        move = self._split.last_move
        if move is not None and prefix_ratio != self._logged_ratio:
            log.info(
                "split_moved",
                prefix_ratio=round(prefix_ratio, 4),
                from_prefix_ratio=round(self._logged_ratio, 4),
                gain_ratio=round(move.gain_ratio, 4),
                num_requests=move.num_requests,
            )
            self._logged_ratio = prefix_ratio
