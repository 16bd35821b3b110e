"""The shadow engines' summaries as numpy columns, so that a snapshot of all workers costs a few array operations."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from nebula_protocol.ids import WorkerWithDpRank
from nebula_router.core.shadow_engine import QueueSummary

RowArray = npt.NDArray[np.intp]
_FREE_ROWS = 16
# In the order of the columns; an idle engine's times of late requests are infinite.
_EMPTY = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, np.inf, -np.inf, np.inf, 0.0])


class LoadColumns:
    """Rows of workers; rows of removed workers are used again. Row 0 stays empty and stands for unknown workers."""

    def __init__(self) -> None:
        self._row_of: dict[WorkerWithDpRank, int] = {}
        self._worker_of: dict[int, WorkerWithDpRank] = {}
        self._spare: list[int] = []
        self.known_rows: RowArray = np.zeros(0, dtype=np.intp)
        self._last_workers: tuple[WorkerWithDpRank, ...] = ()
        self._last_rows: RowArray = np.zeros(0, dtype=np.intp)
        self.num_rows = 0
        # One row of this matrix is one column of the snapshot.
        self._values = np.zeros((len(_EMPTY), 0))
        self._grow()

    def _grow(self) -> None:
        first = max(1, self.num_rows)
        self.num_rows += _FREE_ROWS
        grown = np.zeros((len(self._values), self.num_rows))
        grown[:, : self._values.shape[1]] = self._values
        self._values = grown
        self.step_ends_at_s, self.running, self.queued_s, self.queued_tokens, self.co_batched = grown[:5]
        self.turn_s, self.drained_s, self.late_from_at_s, self.late_clear_at_s, self.stale_at_s = grown[5:10]
        self.num_late = grown[10]
        grown[:, 0 if first == 1 else first :] = _EMPTY[:, None]
        self._spare.extend(range(self.num_rows - 1, first - 1, -1))

    def add(self, worker: WorkerWithDpRank) -> int:
        """The new worker's row."""
        if not self._spare:
            self._grow()
        row = self._spare.pop()
        self._row_of[worker] = row
        self._worker_of[row] = worker
        self._forget_rows()
        return row

    def remove(self, worker: WorkerWithDpRank) -> int:
        """Empties and frees the worker's row, and returns it."""
        row = self._row_of.pop(worker)
        del self._worker_of[row]
        self._values[:, row] = _EMPTY
        self._spare.append(row)
        self._forget_rows()
        return row

    def row_of(self, worker: WorkerWithDpRank) -> int:
        """0 for a worker that is not known."""
        return self._row_of.get(worker, 0)

    def rows_of(self, workers: tuple[WorkerWithDpRank, ...]) -> RowArray:
        """Shape [W]; O(1) while the same workers are asked for again and again."""
        if workers is not self._last_workers:
            if workers != self._last_workers:
                self._last_rows = np.array([self._row_of.get(worker, 0) for worker in workers], dtype=np.intp)
            self._last_workers = workers
        return self._last_rows

    def put(self, row: int, summary: QueueSummary) -> None:
        running = summary.step_ends_at_s is not None
        self._values[:, row] = (
            summary.step_ends_at_s if running else 0.0,
            1.0 if running else 0.0,
            summary.queued_s,
            summary.queued_tokens,
            summary.co_batched,
            summary.turn_s,
            summary.drained_s,
            summary.late_from_at_s,
            summary.late_clear_at_s,
            summary.stale_at_s,
            summary.num_late,
        )

    def stale(self, now_s: float) -> Iterator[WorkerWithDpRank]:
        """Workers whose summary is no longer true by the clock alone."""
        return (self._worker_of[int(row)] for row in np.flatnonzero(self.stale_at_s <= now_s))

    def _forget_rows(self) -> None:
        self._last_workers = ()
        self.known_rows = np.array(sorted(self._worker_of), dtype=np.intp)
