"""The connector's half in the engine's scheduler: decides what is loaded, computed again, saved and told."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from nebula_protocol.errors import TokenIdsError
from nebula_protocol.fusion import NO_FUSION, Fusion, legolink
from pic_worker.adapters.vllm.block_name import block_name
from pic_worker.adapters.vllm.engine_wire import (
    ConnectorSettings,
    EngineNews,
    PrefillFacts,
    PrefillKind,
    PrefillOrder,
    StepFact,
    read_order,
)
from pic_worker.adapters.vllm.load_orders import PlannedLoad, chunk_order, load_order
from pic_worker.adapters.vllm.orders import BlockSave, LoadOrder, StepOrders, StepReport
from pic_worker.adapters.vllm.step_work import ScheduledWork, scheduled_work, step_shares
from pic_worker.adapters.vllm.token_keeper import TokenKeeper
from pic_worker.adapters.vllm.tracked_request import TrackedRequest, track_segments
from pic_worker.core.arena_ids import SaveId
from pic_worker.core.block_mirror import BlockMirror
from pic_worker.core.claim import Claim, WantedSegment, plan_claim
from pic_worker.core.host_catalogue import HostCatalogue
from pic_worker.core.load_queue import LoadQueue, Start
from pic_worker.core.prefill_ledger import FinishedStep, PrefillLedger
from pic_worker.core.recompute import plan_recompute

_log = structlog.get_logger(__name__)


class News(Protocol):
    def send(self, news: EngineNews) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _OpenStep:
    """Planned, and not known to be done."""

    claims: tuple[Claim, ...]
    """What it loads; pinned."""
    save_ids: frozenset[SaveId]


class SchedulerHalf:
    """Driven by vLLM's scheduler: look-ups and allocations while it plans a step, then `build_orders`, and
    `finish_step` when the ranks have done it. With asynchronous scheduling a step is planned before the last one is
    done; the ranks carry steps out in the order in which they were planned.
    """

    def __init__(
        self, settings: ConnectorSettings, *, block_size_tokens: int, news: News, clock: Callable[[], float]
    ) -> None:
        """
        Raises:
            ValueError: a block is no whole number of pages.
        """
        self._settings = settings
        self._block_size_tokens = block_size_tokens
        self._news = news
        self._clock = clock
        self._pool: BlockPool | None = None
        self.catalogue = HostCatalogue(
            capacity_tokens=settings.store_capacity_tokens,
            page_tokens=settings.page_tokens,
            block_size_tokens=block_size_tokens,
            prefix_ratio=settings.prefix_ratio,
        )
        self._mirror = BlockMirror()
        self._keeper = TokenKeeper(self.catalogue, self._mirror, block_size_tokens, keeps_segments=settings.pic)
        self._loads = LoadQueue(settings.max_recomputed_tokens_per_step)
        self._ledger = PrefillLedger()
        self._requests: dict[str, TrackedRequest] = {}
        self._ended: list[TrackedRequest] = []
        """Gone from the engine, while steps with their work are open."""
        self._step = 0
        self._planned: dict[str, PlannedLoad] = {}
        """Claims of the step being planned, pinned, whose blocks are not allocated yet."""
        self._new_loads: list[LoadOrder] = []
        self._new_claims: list[Claim] = []
        self._handed_out: list[int] = []
        """Blocks allocated in the step being planned, which will be written to."""
        self._given_up: list[str] = []
        self._open_steps: deque[_OpenStep] = deque()

    @property
    def num_requests(self) -> int:
        return len(self._requests) + len(self._ended)

    def bind_block_pool(self, pool: BlockPool) -> None:
        self._pool = pool

    # ---- while the engine plans a step ----

    def begin_request(self, request: Request) -> None:
        self._track(request)

    def match(self, request: Request, device_tokens: int) -> tuple[int | None, bool]:
        """How many tokens behind the prefix in the device tier are filled, and whether that takes several steps; None
        where this cannot be told before the next step."""
        tracked = self._track(request)
        self._unplan(tracked.request_id)
        tracked.lose_blocks()
        tracked.device_tokens = device_tokens
        if tracked.is_remote and _is_pulled(request):
            return 0, False
        claim = self._plan_claim(tracked)
        if not claim.num_tokens:
            return 0, False
        recompute = plan_recompute(claim, self._fusion_of(tracked))
        if recompute.num_tokens and self._is_prefix_being_written(tracked):
            return None, False
        start = self._loads.when(recompute.num_tokens)
        if start is Start.LATER:
            return None, False
        self._pin(claim)
        self._planned[tracked.request_id] = PlannedLoad(claim, recompute, start)
        return claim.num_tokens, start is Start.OVER_STEPS

    def allocate(self, request: Request, block_ids: Sequence[int], num_claimed_tokens: int) -> None:
        """The engine allocated blocks; `block_ids` are all of the request's, or none where it does not tell."""
        tracked = self._track(request)
        planned = self._planned.get(tracked.request_id)
        if planned is not None and num_claimed_tokens != planned.claim.num_tokens:
            self._unplan(tracked.request_id)
            planned = None
        if not block_ids:
            return
        if tracked.block_ids:
            self._handed_out += block_ids[len(tracked.block_ids) :]
            tracked.block_ids = list(block_ids)
            return
        self._admit(tracked, block_ids, planned)
        if planned is not None:
            self._begin_load(tracked, planned)

    def build_orders(self, output: SchedulerOutput) -> StepOrders:
        """What the ranks do in the step that was planned. From here on the next one is being planned."""
        for request_id in list(self._planned):
            self._unplan(request_id)
        work = scheduled_work(output)
        for scheduled in work:
            self._follow_blocks(scheduled)
        block_saves = self._save_leaving_blocks()
        chunks = self._loads.take_step()
        segment_saves = tuple(
            save
            for scheduled in work
            if (tracked := self._requests.get(scheduled.request_id)) is not None
            for save in self._keeper.advance(tracked, scheduled.end)
        )
        shares, totals = step_shares(work, chunks, self._requests)
        self._ledger.begin_step(shares, totals, self._clock())
        save_ids = {*(save.save_id for save in block_saves), *(save.save_id for save in segment_saves)}
        self._open_steps.append(_OpenStep(tuple(self._new_claims), frozenset(save_ids)))
        orders = StepOrders(
            block_saves=block_saves,
            loads=tuple(self._new_loads),
            chunks=tuple(chunk_order(chunk) for chunk in chunks),
            segment_saves=segment_saves,
            given_up=tuple(self._given_up),
        )
        self._new_claims.clear()
        self._new_loads.clear()
        self._given_up.clear()
        self._step += 1
        return orders

    # ---- when a step is done, a request over ----

    def finish_step(self, report: StepReport) -> None:
        """The oldest open step is done; `report` names those of its saves that all ranks have done."""
        self.catalogue.confirm(report.saved)
        if self._open_steps:
            done = self._open_steps.popleft()
            for claim in done.claims:
                self._unpin(claim)
            self.catalogue.cancel(done.save_ids - report.saved)
        step = self._ledger.end_step(self._clock())
        over = [tracked for tracked in self._ended if not self._ledger.has_open_steps(tracked.request_id)]
        if over:
            self._ended = [tracked for tracked in self._ended if tracked not in over]
        self._tell(over, step)

    def end_request(self, request: Request, block_ids: Sequence[int]) -> None:
        """The request ended, or was aborted at any moment; its blocks are freed now, or when its load is over."""
        tracked = self._requests.pop(request.request_id, None)
        if tracked is None:
            return
        self._unplan(tracked.request_id)
        if self._loads.forget(tracked.request_id):
            self._given_up.append(tracked.request_id)
        # Blocks that the engine did not tell of may have been written to.
        self._mirror.overwrite(set(block_ids).difference(tracked.block_ids))
        if tracked.order is None:
            return
        if self._ledger.has_open_steps(tracked.request_id):
            self._ended.append(tracked)
        else:
            self._tell([tracked], None)

    def reset(self) -> None:
        """What is cached anywhere is worth nothing any more."""
        self._mirror.clear()
        self.catalogue.clear()
        self._tell([], None)

    def tell_events(self) -> None:
        """The store was changed from outside."""
        self._tell([], None)

    def shutdown(self) -> None:
        self._news.close()

    # ---- requests ----

    def _track(self, request: Request) -> TrackedRequest:
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            tracked = self._requests[request.request_id] = self._new_track(request)
            if tracked.order is not None:
                self._ledger.open_account(tracked.request_id, self._clock())
        return tracked

    def _new_track(self, request: Request) -> TrackedRequest:
        params = request.kv_transfer_params
        order: PrefillOrder | None = None
        try:
            order = read_order(params)
            segments = track_segments(request, order)
        except (msgspec.ValidationError, TokenIdsError) as error:
            # An error here would end the engine with all its requests.
            _log.error("prefill_order_unreadable", request_id=request.request_id, error=str(error))
            segments = ()
        return TrackedRequest(request, order, _is_pulled(request), segments)

    # ---- claims ----

    def _fusion_of(self, tracked: TrackedRequest) -> Fusion:
        fusion = tracked.order.fusion if tracked.order is not None else NO_FUSION
        return legolink() if fusion.needs_probe and not self._settings.selects else fusion

    def _plan_claim(self, tracked: TrackedRequest) -> Claim:
        block_hashes = tracked.request.block_hashes
        first_block = tracked.device_tokens // self._block_size_tokens
        num_usable = (tracked.prompt_tokens - 1) // self._block_size_tokens
        names = (block_name(block_hash) for block_hash in block_hashes[first_block:num_usable])
        blocks = self.catalogue.find_blocks(names)
        prefix_tokens = tracked.device_tokens + len(blocks) * self._block_size_tokens
        return plan_claim(
            prompt_tokens=tracked.prompt_tokens,
            device_tokens=tracked.device_tokens,
            blocks=blocks,
            block_size_tokens=self._block_size_tokens,
            segments=self._look_up(tracked, prefix_tokens),
        )

    def _look_up(self, tracked: TrackedRequest, prefix_tokens: int) -> list[WantedSegment]:
        order = tracked.order
        is_wanted = order is not None and order.may_reuse and order.kind is PrefillKind.PROMPT and self._settings.pic
        wanted: list[WantedSegment] = []
        for segment in tracked.segments:
            plan = segment.plan
            stored = None
            if is_wanted and plan.end > prefix_tokens:
                stored = self.catalogue.find_segment(segment.key)
                segment.was_absent = stored is None
                segment.tokens_differed = stored is not None and stored.token_bytes != segment.token_bytes
                if segment.tokens_differed:
                    stored = None
            wanted.append(WantedSegment(plan.start, plan.end, stored))
        return wanted

    def _is_prefix_being_written(self, tracked: TrackedRequest) -> bool:
        """Whether some of the prefix in the device tier is only computed in the very step being planned.

        The connector's pass may run before the engine's, and would read what is not there yet. A block whose content is
        not known from an earlier step, and which was not seen before this one, is taken for such.
        """
        if self._pool is None:
            return False
        num_blocks = tracked.device_tokens // self._block_size_tokens
        is_written = True
        for block_hash in tracked.request.block_hashes[:num_blocks]:
            cached = self._pool.get_cached_block(block_hash, [0])
            if not cached or self._mirror.holds(cached[0].block_id, block_hash):
                continue
            first_seen = tracked.unwritten.setdefault((cached[0].block_id, block_hash), self._step)
            is_written = is_written and first_seen < self._step
        return not is_written

    def _pin(self, claim: Claim) -> None:
        self.catalogue.pin_blocks(claim.blocks)
        for use in claim.uses:
            self.catalogue.pin_segment(use.stored.key)

    def _unpin(self, claim: Claim) -> None:
        for use in claim.uses:
            self.catalogue.unpin_segment(use.stored.key)
        self.catalogue.unpin_blocks(claim.blocks)

    def _unplan(self, request_id: str) -> None:
        planned = self._planned.pop(request_id, None)
        if planned is not None:
            self._unpin(planned.claim)

    # ---- blocks ----

    def _admit(self, tracked: TrackedRequest, block_ids: Sequence[int], planned: PlannedLoad | None) -> None:
        self._handed_out += block_ids[tracked.device_tokens // self._block_size_tokens :]
        tracked.admit(block_ids, planned.claim if planned is not None else None)

    def _begin_load(self, tracked: TrackedRequest, planned: PlannedLoad) -> None:
        del self._planned[tracked.request_id]
        prompt = tracked.request.prompt_token_ids or []
        self._new_loads.append(
            load_order(tracked.request_id, prompt, tracked.block_ids, self._block_size_tokens, planned)
        )
        self._new_claims.append(planned.claim)
        self._loads.begin(tracked.request_id, planned.recompute.num_tokens, planned.start)
        tracked.note_load(planned)

    def _follow_blocks(self, scheduled: ScheduledWork) -> None:
        tracked = self._requests.get(scheduled.request_id)
        if tracked is None:
            return
        if not scheduled.is_whole_table:
            self._handed_out += scheduled.block_ids
            tracked.block_ids += scheduled.block_ids
        elif not tracked.block_ids:
            # The engine did not tell when it allocated them. What is pulled from elsewhere may have come already.
            if tracked.is_remote:
                self._mirror.overwrite(scheduled.block_ids)
            tracked.device_tokens = min(tracked.device_tokens, scheduled.start)
            self._admit(tracked, scheduled.block_ids, None)

    def _save_leaving_blocks(self) -> tuple[BlockSave, ...]:
        leaving = self._mirror.overwrite(self._handed_out)
        self._handed_out.clear()
        by_hash = {block.content.block_hash: block.block_id for block in leaving}
        reservations = self.catalogue.reserve_blocks(
            [(block_name(block.content.block_hash), block.content.is_injected) for block in leaving]
        )
        return tuple(
            BlockSave(reservation.save_id, by_hash[reservation.name.full_hash], reservation.pages)
            for reservation in reservations
        )

    # ---- the worker's process ----

    def _tell(self, over: Sequence[TrackedRequest], step: FinishedStep | None) -> None:
        fact: StepFact | None = None
        if step is not None and step.totals.num_tokens:
            totals = step.totals
            fact = StepFact(
                duration_s=step.duration_s, num_tokens=totals.num_tokens, recomputed_tokens=totals.recomputed_tokens
            )
        events = self.catalogue.take_events()
        if events or over or fact is not None:
            finished = tuple(self._facts(tracked) for tracked in over)
            self._news.send(EngineNews(events=events, finished=finished, step=fact))

    def _facts(self, tracked: TrackedRequest) -> PrefillFacts:
        request_id = tracked.request_id
        queued_s = self._ledger.queued_s(request_id, self._clock())
        ledger = self._ledger.close_account(request_id)
        return tracked.facts(
            queued_s=queued_s, ledger=ledger, is_stored=lambda segment: self.catalogue.has_segment(segment.key)
        )


def _is_pulled(request: Request) -> bool:
    """Whether another connector will bring the prompt's KV from another engine."""
    params = request.kv_transfer_params
    return params is not None and bool(params.get("do_remote_prefill"))
