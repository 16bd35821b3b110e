"""Round robin, with position-independent caching inside each worker.

Single-worker PIC behind a router that knows nothing: the setting of CacheBlend (Yao et al., EuroSys 2025,
arXiv 2405.16444) and EPIC (Hu et al., ICML 2025, arXiv 2410.15332).
"""

from collections.abc import Sequence

from nebula_bench.policies.policy import Placement, Policy
from nebula_protocol.card import WorkerCard
from nebula_protocol.ids import WorkerId, WorkerWithDpRank
from nebula_protocol.messages import StateChunk
from nebula_router.errors import NoWorkerError
from nebula_router.request import RoutedRequest


class RoundRobinPolicy(Policy):
    sees_blocks = False

    def __init__(self) -> None:
        self._workers: list[WorkerId] = []
        self._num_placed = 0

    def add_worker(self, card: WorkerCard, chunks: Sequence[StateChunk], now_s: float) -> None:
        self._workers = sorted({*self._workers, card.worker_id})

    def remove_worker(self, worker_id: WorkerId) -> None:
        self._workers = [worker for worker in self._workers if worker != worker_id]

    def place(self, request: RoutedRequest, *, excluded: frozenset[WorkerId], attempt: int, now_s: float) -> Placement:
        workers = [worker for worker in self._workers if worker not in excluded]
        if not workers:
            raise NoWorkerError("no worker is alive")
        self._num_placed += 1
        return Placement(WorkerWithDpRank(workers[self._num_placed % len(workers)]))
