"""Outstanding work of every worker: what the router dispatched and has no receipt for."""

import numpy as np

from nebula_protocol.ids import RequestId, WorkerWithDpRank
from nebula_protocol.receipt import StepWork
from nebula_router.core.calibration import CostCalibration
from nebula_router.core.fleet import link_s_per_token
from nebula_router.core.link_load import LinkLoad
from nebula_router.core.load_columns import LoadColumns
from nebula_router.core.load_snapshot import FloatArray, LoadSnapshot
from nebula_router.core.queued_work import QueuedWork
from nebula_router.core.shadow_engine import ShadowEngine
from nebula_router.core.work_price import WorkPrice
from nebula_router.core.worker_profile import WorkerProfile


class LoadTracker:
    """One shadow engine per worker, what receipts taught about its speed, and the backlog of its link.

    Work is named by (request, worker): a request's helpers have work of the same request. Workers and work that are not
    known are ignored, since receipts and failures may come after a worker was removed.
    """

    def __init__(self) -> None:
        self._columns = LoadColumns()
        self._links = LinkLoad()
        self._price = WorkPrice()
        self._calibration = CostCalibration()
        self._factors: FloatArray = np.ones(0)
        self._profiles: dict[WorkerWithDpRank, WorkerProfile] = {}
        self._engines: dict[WorkerWithDpRank, ShadowEngine] = {}
        self._resize()

    @property
    def num_outstanding(self) -> int:
        return sum(engine.num_outstanding for engine in self._engines.values())

    def put_worker(self, profile: WorkerProfile) -> None:
        """Adds a worker, or takes over a known one's new card; its outstanding work and learnt speed stay then."""
        worker, card = profile.worker, profile.card
        if worker not in self._profiles:
            self._columns.add(worker)
            self._resize()
            self._calibration.add_worker(worker, profile.cost_factor)
            self._engines[worker] = ShadowEngine(step_s=card.step_cost.step_s, max_step_tokens=card.max_step_tokens)
        self._profiles[worker] = profile
        self._apply_factor(worker, self._calibration.factor(worker))

    def remove_worker(self, worker: WorkerWithDpRank) -> None:
        """Forgets the worker, its outstanding work and its learnt speed."""
        if self._profiles.pop(worker, None) is None:
            return
        del self._engines[worker]
        self._calibration.remove_worker(worker)
        row = self._columns.remove(worker)
        self._links.clear(row)
        self._price.clear(row)
        self._factors[row] = 1.0

    def record_dispatch(
        self, request_id: RequestId, worker: WorkerWithDpRank, work: QueuedWork, *, runnable_at_s: float, now_s: float
    ) -> None:
        """The worker was given work that is runnable when its remote segments have arrived."""
        profile = self._profiles.get(worker)
        if profile is None:
            return
        cost, factor = profile.card.step_cost, self._calibration.factor(worker)
        marginal_s = work.marginal_s(cost, factor)
        row = self._columns.row_of(worker)
        opens_step = self._columns.co_batched[row] == 0
        self._price.record_dispatch(row, marginal_s + (factor * cost.step_s if opens_step else 0.0), now_s)
        engine = self._engines[worker]
        engine.add(
            request_id, step_tokens=work.step_tokens, marginal_s=marginal_s, runnable_at_s=runnable_at_s, now_s=now_s
        )
        self._columns.put(row, engine.summary(now_s))

    def record_transfer(
        self, source: WorkerWithDpRank, target: WorkerWithDpRank, num_tokens: int, *, now_s: float
    ) -> None:
        """KV of `num_tokens` is going to be copied from one worker to another."""
        profiles = self._profiles
        if source in profiles and target in profiles:
            self._links.record_transfer(
                source=self._columns.row_of(source),
                target=self._columns.row_of(target),
                out_s=num_tokens * link_s_per_token(profiles[source].card),
                in_s=num_tokens * link_s_per_token(profiles[target].card),
                now_s=now_s,
            )

    def record_receipt(
        self, request_id: RequestId, worker: WorkerWithDpRank, work: StepWork | None, *, now_s: float
    ) -> None:
        """The worker has delivered; `work` calibrates its speed where the reply tells it."""
        profile = self._profiles.get(worker)
        if profile is None:
            return
        if work is not None:
            self._apply_factor(worker, self._calibration.record_steps(worker, work, profile.card.step_cost))
        engine = self._engines[worker]
        engine.end_step(request_id, now_s)
        self._columns.put(self._columns.row_of(worker), engine.summary(now_s))

    def record_failure(self, request_id: RequestId, worker: WorkerWithDpRank, *, now_s: float) -> None:
        """The work ended without a result: refused, cancelled, or lost."""
        engine = self._engines.get(worker)
        if engine is not None:
            engine.drop(request_id, now_s)
            self._columns.put(self._columns.row_of(worker), engine.summary(now_s))

    def snapshot(self, workers: tuple[WorkerWithDpRank, ...], now_s: float) -> LoadSnapshot:
        """All columns at `now_s`; an unknown worker reads as an idle one. A few array operations in the mean."""
        columns = self._columns
        for worker in columns.stale(now_s):
            columns.put(columns.row_of(worker), self._engines[worker].summary(now_s))
        rows = columns.rows_of(workers)
        # A step that is overdue is expected to last as long again as it is overdue already: right for steps that the
        # fit underrates, and it makes a worker that hangs less and less attractive.
        step_rest_s = np.abs(columns.step_ends_at_s - now_s) * columns.running
        free_in_s = step_rest_s + columns.queued_s
        work_price = self._price.price(free_in_s[columns.known_rows], now_s)
        step_rest_s = step_rest_s[rows]
        drained_in_s = step_rest_s + columns.drained_s[rows]
        return LoadSnapshot(
            workers=workers,
            free_in_s=free_in_s[rows],
            queued_tokens=columns.queued_tokens[rows],
            co_batched=columns.co_batched[rows],
            turn_in_s=step_rest_s + columns.turn_s[rows],
            drained_in_s=drained_in_s,
            late_from_s=columns.late_from_at_s[rows] - now_s,
            num_late=columns.num_late[rows],
            late_free_in_s=np.maximum(drained_in_s, columns.late_clear_at_s[rows] - now_s),
            recent_work_s=self._price.recent_s[rows],
            cost_factor=self._factors[rows],
            link_out_busy_s=self._links.out_busy_s(rows, now_s),
            link_in_busy_s=self._links.in_busy_s(rows, now_s),
            work_price=work_price,
        )

    def _apply_factor(self, worker: WorkerWithDpRank, factor: float) -> None:
        card = self._profiles[worker].card
        self._factors[self._columns.row_of(worker)] = factor
        self._engines[worker].set_limits(step_s=factor * card.step_cost.step_s, max_step_tokens=card.max_step_tokens)

    def _resize(self) -> None:
        num_rows = self._columns.num_rows
        if num_rows > len(self._factors):
            self._links.resize(num_rows)
            self._price.resize(num_rows)
            self._factors = np.concatenate([self._factors, np.ones(num_rows - len(self._factors))])
