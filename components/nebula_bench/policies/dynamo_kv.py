"""Dynamo's KV-aware routing of prefill, with the cost of its `DefaultWorkerSelector` in version 1.4.2.

    cost = prefill_load_scale * max(0, (active_prefill_tokens + prompt_tokens) / block_size - credit)
    credit = 1.0 * device blocks + 0.75 * host blocks behind them

`active_prefill_tokens` are the uncached tokens of the requests that were sent to the worker and have not finished their
prefill. In disaggregated serving the prefill router does not track decode blocks, so they are no part of the cost. The
least cost wins, ties at random. Source: `lib/kv-router/src/scheduling/selector.rs` of Dynamo, and the defaults in the
docstring of `dynamo.llm.KvRouterConfig`. The block index is fed by events alone, as Dynamo's is by default.
"""

import random
from collections.abc import Sequence

from nebula_bench.policies.block_index import BlockIndex, Overlap, block_chain
from nebula_bench.policies.policy import Placement, Policy
from nebula_protocol.card import WorkerCard
from nebula_protocol.events import WorkerKvEvent, WorkerPicEvents
from nebula_protocol.ids import RequestId, WorkerId, WorkerWithDpRank
from nebula_protocol.messages import StateChunk
from nebula_protocol.receipt import Receipt
from nebula_router.errors import NoWorkerError
from nebula_router.request import RoutedRequest
from pic_worker.settings import WorkerSettings

_DEVICE_CREDIT = 1.0
_HOST_CREDIT = 0.75


class DynamoKvPolicy(Policy):
    """In front of workers that reuse segments by themselves: the paper's central baseline."""

    sees_segments = True

    def __init__(self, seed: int) -> None:
        self._index = BlockIndex()
        self._block_size_tokens = 0
        self._random = random.Random(f"{seed}/dynamo_kv")
        self._active: dict[RequestId, tuple[WorkerId, int]] = {}
        self._active_tokens: dict[WorkerId, int] = {}

    def add_worker(self, card: WorkerCard, chunks: Sequence[StateChunk], now_s: float) -> None:
        self._index.replace_worker(card.worker_id, chunks)
        self._block_size_tokens = card.domain.block_size_tokens
        self._active_tokens.setdefault(card.worker_id, 0)

    def remove_worker(self, worker_id: WorkerId) -> None:
        self._index.remove_worker(worker_id)
        self._active_tokens.pop(worker_id, None)

    def apply_kv_events(self, events: Sequence[WorkerKvEvent], now_s: float) -> None:
        self._index.apply_kv_events(events)

    def apply_pic_events(self, events: WorkerPicEvents, now_s: float) -> None:
        self._index.apply_pic_events(events.worker_id, events.events)

    def place(self, request: RoutedRequest, *, excluded: frozenset[WorkerId], attempt: int, now_s: float) -> Placement:
        num_tokens, size = len(request.tokens), self._block_size_tokens
        workers = [worker for worker in self._index.worker_ids() if worker not in excluded]
        if not workers:
            raise NoWorkerError("no worker is alive")
        chain = block_chain(request.tokens, size)
        credits = {worker: _credit_blocks(self._index.overlap(worker, chain)) for worker in workers}
        costs = {
            worker: max(0.0, (self._active_tokens[worker] + num_tokens) / size - credits[worker]) for worker in workers
        }
        least = min(costs.values())
        target = self._random.choice([worker for worker in workers if costs[worker] == least])
        uncached_tokens = max(0, num_tokens - round(credits[target] * size))
        self._active[request.request_id] = (target, uncached_tokens)
        self._active_tokens[target] += uncached_tokens
        return Placement(WorkerWithDpRank(target))

    def record_receipt(self, placement: Placement, receipt: Receipt, now_s: float) -> None:
        self._end(receipt.request_id)

    def record_failure(self, request: RoutedRequest, placement: Placement, now_s: float) -> None:
        self._end(request.request_id)

    def _end(self, request_id: RequestId) -> None:
        worker, uncached_tokens = self._active.pop(request_id)
        if worker in self._active_tokens:
            self._active_tokens[worker] -= uncached_tokens


class DynamoKvPrefixPolicy(DynamoKvPolicy):
    """In front of workers with prefix caching only."""

    @classmethod
    def worker_settings(cls, base: WorkerSettings) -> WorkerSettings:
        return prefix_only(base)


def prefix_only(base: WorkerSettings) -> WorkerSettings:
    """Workers that keep prefix blocks and nothing else."""
    return base.model_copy(update={"pic": False, "prefix_ratio": 1.0})


def _credit_blocks(overlap: Overlap) -> float:
    return _DEVICE_CREDIT * overlap.device_blocks + _HOST_CREDIT * overlap.host_blocks
