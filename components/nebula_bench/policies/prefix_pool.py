"""A global prefix pool: any worker can fetch the prefix that another one has; prefixes match strictly.

After Mooncake's KVCache-centric conductor (Qin et al., FAST 2025, arXiv 2407.00079, algorithm 1): for each worker the
time to first token is estimated as its queue plus its prefill, with the prefix that it has itself or with the best one
in the pool fetched first, and the least estimate wins. LMCache and MemServe share prefixes in the same way. Queue and
prefill times are estimated by the load tracker and the closed form that Nebula uses, so that what is compared is the
reuse and not the estimate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nebula_bench.policies.block_index import BlockIndex, block_chain
from nebula_bench.policies.policy import Placement, Policy
from nebula_protocol.card import WorkerCard
from nebula_protocol.cost import attention_pairs
from nebula_protocol.cutter import cut_prompt
from nebula_protocol.cutting import CutterConfig
from nebula_protocol.events import WorkerKvEvent, WorkerPicEvents
from nebula_protocol.fusion import NO_FUSION
from nebula_protocol.hashing import hash_blocks, hash_segment
from nebula_protocol.ids import EngineBlockHash, Origin, SegmentHash, WorkerId, WorkerWithDpRank
from nebula_protocol.layout import Segment
from nebula_protocol.messages import FetchedSegment, FetchRequest, StateChunk
from nebula_protocol.plan import Estimate, Plan, SegmentPlan, Source
from nebula_protocol.receipt import Receipt
from nebula_protocol.tokens import token_bytes
from nebula_router.core.load import LoadTracker
from nebula_router.core.queued_work import QueuedWork
from nebula_router.core.worker_profile import profiles_of
from nebula_router.errors import NoWorkerError
from nebula_router.request import RoutedRequest
from pic_worker.settings import WorkerSettings

# A fetch is given up after this many times its estimate and as much more, as Nebula's router allows too.
_WAIT_SLACK_S = 0.05


class _Option(NamedTuple):
    """One way to serve a request: a worker, and how much of the prefix it fetches from where."""

    completion_s: float
    arrive_in_s: float
    runnable_in_s: float
    """When a step may begin that meets what is fetched layer by layer."""
    target: WorkerId
    source: WorkerId
    own_tokens: int
    prefix_tokens: int
    """Own and fetched."""


@dataclass(frozen=True, slots=True)
class _Blocks:
    """What the name of a fetched prefix stands for."""

    names: tuple[EngineBlockHash, ...]
    """With all before them, since a prefix is of use as a whole."""
    token_bytes: bytes


class PrefixPoolPolicy(Policy):
    """In front of workers that also reuse segments by themselves."""

    sees_segments = True
    fetches_prefix = True
    reuses_segments = True

    def __init__(self, cutter: CutterConfig) -> None:
        self._cutter = cutter
        self._index = BlockIndex()
        self._cards: dict[WorkerId, WorkerCard] = {}
        self._loads = LoadTracker()
        self._fetched: dict[SegmentHash, _Blocks] = {}

    def add_worker(self, card: WorkerCard, chunks: Sequence[StateChunk], now_s: float) -> None:
        self._index.replace_worker(card.worker_id, chunks)
        self._cards[card.worker_id] = card
        for profile in profiles_of(card):
            self._loads.put_worker(profile)

    def remove_worker(self, worker_id: WorkerId) -> None:
        self._index.remove_worker(worker_id)
        self._cards.pop(worker_id, None)
        self._loads.remove_worker(WorkerWithDpRank(worker_id))

    def apply_kv_events(self, events: Sequence[WorkerKvEvent], now_s: float) -> None:
        self._index.apply_kv_events(events)

    def apply_pic_events(self, events: WorkerPicEvents, now_s: float) -> None:
        self._index.apply_pic_events(events.worker_id, events.events)

    # ---- requests ----

    def place(self, request: RoutedRequest, *, excluded: frozenset[WorkerId], attempt: int, now_s: float) -> Placement:
        workers = [worker for worker in sorted(self._cards) if worker not in excluded]
        if not workers:
            raise NoWorkerError("no worker is alive")
        size = self._cards[workers[0]].domain.block_size_tokens
        chain = block_chain(request.tokens, size)
        usable = (len(request.tokens) - 1) // size
        held = {worker: min(self._index.overlap(worker, chain).num_blocks, usable) * size for worker in workers}
        source = max(workers, key=lambda worker: held[worker])
        best = min(self._options(request, held, source, now_s))
        self._record(request, best, now_s)
        return Placement(WorkerWithDpRank(best.target), plan=self._plan(request, best, chain, size))

    def _options(
        self, request: RoutedRequest, held: dict[WorkerId, int], source: WorkerId, now_s: float
    ) -> list[_Option]:
        workers = tuple(map(WorkerWithDpRank, held))
        load = self._loads.snapshot(workers, now_s)
        options: list[_Option] = []
        for row, (worker, own_tokens) in enumerate(held.items()):
            card, factor = self._cards[worker], float(load.cost_factor[row])
            free_in_s = float(load.free_in_s[row])
            for prefix_tokens in {own_tokens, held[source]}:
                num_fetched = prefix_tokens - own_tokens
                arrive_in_s = 0.0
                if num_fetched:
                    busy_s = max(
                        load.link_in_busy_s[row], load.link_out_busy_s[workers.index(WorkerWithDpRank(source))]
                    )
                    arrive_in_s = float(busy_s) + card.peer_link.transfer_s(num_fetched * card.kv_bytes_per_token)
                step_s = factor * card.step_cost.step_s
                compute_s = step_s + _work(len(request.tokens), prefix_tokens).marginal_s(card.step_cost, factor)
                runnable_in_s = _runnable_in_s(card, arrive_in_s, compute_s)
                completion_s = max(free_in_s, runnable_in_s) + compute_s
                options.append(
                    _Option(completion_s, arrive_in_s, runnable_in_s, worker, source, own_tokens, prefix_tokens)
                )
        return options

    def _record(self, request: RoutedRequest, best: _Option, now_s: float) -> None:
        target = WorkerWithDpRank(best.target)
        self._loads.record_dispatch(
            request.request_id,
            target,
            _work(len(request.tokens), best.prefix_tokens),
            runnable_at_s=now_s + best.runnable_in_s,
            now_s=now_s,
        )
        if best.prefix_tokens > best.own_tokens:
            self._loads.record_transfer(
                WorkerWithDpRank(best.source), target, best.prefix_tokens - best.own_tokens, now_s=now_s
            )

    def record_receipt(self, placement: Placement, receipt: Receipt, now_s: float) -> None:
        self._loads.record_receipt(receipt.request_id, receipt.worker, receipt.work, now_s=now_s)

    def record_failure(self, request: RoutedRequest, placement: Placement, now_s: float) -> None:
        self._loads.record_failure(request.request_id, placement.target, now_s=now_s)

    # ---- plan and transfer ----

    def _plan(self, request: RoutedRequest, best: _Option, chain: Sequence[EngineBlockHash], size: int) -> Plan:
        """The fetched prefix as one span that is copied and not kept as a segment; behind it the worker's own cut."""
        domain_id = self._cards[best.target].domain.domain_id
        spans: list[SegmentPlan] = []
        if best.prefix_tokens > best.own_tokens:
            piece = request.tokens[best.own_tokens : best.prefix_tokens]
            name = hash_segment(piece)
            self._fetched[name] = _Blocks(tuple(chain[: best.prefix_tokens // size]), token_bytes(piece))
            spans.append(
                SegmentPlan(
                    start=best.own_tokens,
                    end=best.prefix_tokens,
                    segment_hash=name,
                    source=Source.FETCH,
                    from_worker=WorkerWithDpRank(best.source),
                    keep=False,
                )
            )
        spans += [
            SegmentPlan(start=cut.start, end=cut.end, segment_hash=cut.segment_hash, source=Source.COMPUTE)
            for cut in self._cut(request, size)
            if not spans or cut.start >= best.prefix_tokens
        ]
        return Plan(
            request_id=request.request_id,
            domain_id=domain_id,
            target=WorkerWithDpRank(best.target),
            segments=tuple(spans),
            prefix_hit_tokens=best.own_tokens,
            wait_budget_s=2 * best.arrive_in_s + _WAIT_SLACK_S,
            estimate=Estimate(
                free_in_s=0.0, arrive_in_s=best.arrive_in_s, compute_s=0.0, completion_s=best.completion_s
            ),
            hands_over=request.max_tokens != 1,
        )

    def _cut(self, request: RoutedRequest, size: int) -> tuple[Segment, ...]:
        if not self.reuses_segments:
            return ()
        return cut_prompt(
            request.tokens,
            self._cutter,
            block_size_tokens=size,
            block_hashes=hash_blocks(request.tokens, size),
            spans=request.options.spans,
        ).segments

    def serve_prefix(
        self, request: FetchRequest, worker_id: WorkerId, held: BlockIndex
    ) -> tuple[FetchedSegment, ...] | None:
        kv_bytes_per_token = self._cards[worker_id].kv_bytes_per_token if worker_id in self._cards else 0
        answers: list[FetchedSegment] = []
        for wanted in request.segments:
            blocks = self._fetched[wanted.segment_hash]
            if held.has_all(worker_id, blocks.names):
                kv_bytes = wanted.num_tokens * kv_bytes_per_token
                answers.append(
                    FetchedSegment(
                        segment_hash=wanted.segment_hash,
                        token_bytes=blocks.token_bytes,
                        origin=Origin.IN_CONTEXT,
                        kv_bytes=kv_bytes,
                    )
                )
            else:
                answers.append(FetchedSegment(segment_hash=wanted.segment_hash, token_bytes=None))
        return tuple(answers)


class PrefixPoolOnlyPolicy(PrefixPoolPolicy):
    """In front of workers with prefix caching only."""

    reuses_segments = False

    @classmethod
    def worker_settings(cls, base: WorkerSettings) -> WorkerSettings:
        # The span that is copied goes the way of a segment; exact as it is, none of it is computed again.
        return base.model_copy(update={"prefix_ratio": 1.0, "fusion": NO_FUSION})


def _runnable_in_s(card: WorkerCard, arrive_in_s: float, compute_s: float) -> float:
    """As Nebula's router plans it: the last layer must be there when the step comes to it, the first at its begin."""
    overlap_s = compute_s * (1 - 1 / card.stream_pieces)
    return min(arrive_in_s, max(card.peer_link.floor_s, arrive_in_s - overlap_s))


def _work(num_tokens: int, prefix_tokens: int) -> QueuedWork:
    left = num_tokens - prefix_tokens
    return QueuedWork(step_tokens=left, attention_pairs=attention_pairs(left, prefix_tokens))
