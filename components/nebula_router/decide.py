"""The router's one state and its decision: cut, look up, plan, record, with nothing awaited in between."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from types import MappingProxyType

import numpy as np

from nebula_protocol.cutter import cut_prompt
from nebula_protocol.cutting import CutterConfig
from nebula_protocol.domain import tenant_domain
from nebula_protocol.errors import SpanError
from nebula_protocol.events import Decision, WorkerKvEvent, WorkerPicEvents
from nebula_protocol.hashing import hash_blocks
from nebula_protocol.ids import DomainId, RequestId, SegmentHash, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.layout import PromptLayout
from nebula_protocol.lineage import lineage_of
from nebula_protocol.messages import StateChunk
from nebula_protocol.plan import HelperTask, Plan, Source
from nebula_protocol.receipt import Receipt
from nebula_router.core.accounting_views import EventDrivenView, OptimisticView, PredictedView
from nebula_router.core.capacity import NO_GHOST_HITS, GhostHits, SplitController
from nebula_router.core.evidence import Applied
from nebula_router.core.fleet import Fleet
from nebula_router.core.load import LoadTracker
from nebula_router.core.plan_answer import HelperWork, PlanAnswer
from nebula_router.core.plan_question import PlannerSettings, PlanQuestion
from nebula_router.core.planner import plan_prefill
from nebula_router.core.prompt_use import PromptUse
from nebula_router.core.reuse_price import ReusePrice
from nebula_router.core.store_room import StoreRoom
from nebula_router.core.view import ClusterView
from nebula_router.core.worker_profile import WorkerProfile
from nebula_router.errors import BadRequestError, NoWorkerError
from nebula_router.ports import BlockHasher
from nebula_router.request import RoutedRequest
from nebula_router.settings import Accounting, RouterSettings

_US_PER_S = 1e6
# Plans that are remembered for telling who computed a segment first.
_MAX_RECENT_PLANS = 512
_TOLD_CANDIDATES = 8
_VIEWS: Mapping[Accounting, type[ClusterView]] = MappingProxyType(
    {
        "merged": ClusterView,
        "events": EventDrivenView,
        "predicted": PredictedView,
        "optimistic": OptimisticView,
    }
)


@dataclass(frozen=True, slots=True)
class HelperDispatch:
    """One helper's share of a decision, ready to be sent."""

    worker: WorkerWithDpRank
    task: HelperTask
    prompt_token_ids: Sequence[int]
    spans: tuple[tuple[int, int], ...]
    """[start, end) of the task's segments in the prompt."""

    @property
    def token_ids(self) -> list[int]:
        """The task's tokens. Made when they are sent: copying them would be a tenth of a decision."""
        return list(chain.from_iterable(self.prompt_token_ids[start:end] for start, end in self.spans))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A dispatch, of this router or of another: what is expected of it, and what to learn from its receipt."""

    answer: PlanAnswer
    domain_id: DomainId
    unknown_segments: frozenset[int]
    """Indices of segments of which no copy was known, stored or on its way."""
    layout: PromptLayout
    best_prefix_tokens: int
    """The longest prefix that one worker had."""

    @property
    def plan(self) -> Plan:
        return self.answer.plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(Recorded):
    """A decision that is recorded already: what to send where."""

    decision: Decision
    helpers: tuple[HelperDispatch, ...]


@dataclass(frozen=True, slots=True)
class Learned:
    """What a receipt told beside itself."""

    repeated_tokens: int
    """Computed although a copy existed or was on its way that the router did not know when it decided."""
    ghost_hits: GhostHits = NO_GHOST_HITS
    """Computed although it was held once, until room was lacking."""


class RouterState:
    """View, load and workers' profiles. Used from one event loop only."""

    def __init__(self, settings: RouterSettings, cutter: CutterConfig, hash_salted: BlockHasher) -> None:
        self._cutter = cutter
        self._hash_salted = hash_salted
        self._pic = settings.pic
        self._planner_settings = PlannerSettings(
            remote_reuse=settings.remote_reuse,
            join=settings.remote_reuse and settings.join,
            parallel_prefill=settings.parallel_prefill,
            max_helpers=settings.max_helpers,
            wait_slack_ratio=settings.wait_slack_ratio,
            told_candidates=_TOLD_CANDIDATES if settings.publish_decisions else 0,
        )
        self._exact_settings = replace(
            self._planner_settings, pic=False, remote_reuse=False, join=False, parallel_prefill=False
        )
        self._loads = LoadTracker()
        self._profiles: dict[WorkerWithDpRank, WorkerProfile] = {}
        self._fleet = Fleet.of(())
        self._fleet_profiles: list[WorkerProfile] = []
        self._domain_id = DomainId("")
        self._recent_plans: deque[Plan] = deque(maxlen=_MAX_RECENT_PLANS)
        self.split = (
            SplitController(
                prefix_ratio=settings.prefix_ratio,
                window_requests=settings.window_requests,
                max_entries=settings.max_index_entries,
            )
            if settings.split == "auto"
            else None
        )
        """None where the workers' own setting holds."""
        self.view = _VIEWS[settings.accounting](
            max_entries=settings.max_index_entries, max_holders=settings.max_workers, ttl_s=settings.ttl_s
        )

    # ---- workers ----

    @property
    def context_tokens(self) -> int:
        """The longest prompt with its answer that some worker takes; 0 without workers."""
        return max((profile.card.context_tokens for profile in self._fleet_profiles), default=0)

    @property
    def block_size_tokens(self) -> int:
        """
        Raises:
            IndexError: no worker is known.
        """
        return self._fleet_profiles[0].card.domain.block_size_tokens

    def worker_ids(self) -> frozenset[WorkerId]:
        """Workers that requests may be placed on."""
        self._follow_view()
        return frozenset(worker.worker_id for worker in self._fleet.workers)

    def apply_state(self, chunks: Sequence[StateChunk], now_s: float) -> Applied:
        """Takes over a new worker, or a known one's full state.

        Raises:
            DecodeError: these are not all chunks of one snapshot.
            TooManyWorkersError: the worker is new, and there is no room for it.
        """
        applied = self._learn_losses(self.view.apply_state(chunks, now_s))
        self._take_profiles()
        return applied

    def apply_kv_events(self, events: Sequence[WorkerKvEvent], now_s: float) -> Applied:
        return self._learn_losses(self.view.apply_kv_events(events, now_s))

    def apply_pic_events(self, events: WorkerPicEvents, now_s: float) -> Applied:
        return self._learn_losses(self.view.apply_pic_events(events, now_s))

    def _learn_losses(self, applied: Applied) -> Applied:
        if self.split is not None:
            for lost in applied.lost:
                self.split.record_lost(lost)
        return applied

    def worker_epochs(self) -> dict[WorkerId, WorkerEpoch]:
        """Of the workers that requests may be placed on: which process each is."""
        self._follow_view()
        return {profile.worker.worker_id: profile.card.epoch for profile in self._fleet_profiles}

    def remove_worker(self, worker_id: WorkerId) -> None:
        """Forgets everything about a worker that left or was lost."""
        self.view.remove_worker(worker_id)
        self._follow_view()

    def _follow_view(self) -> None:
        """The view drops a worker by itself when it sees that another process answers under its id."""
        if self.view.num_workers != len(self._profiles):
            self._take_profiles()

    def _take_profiles(self) -> None:
        profiles = {profile.worker: profile for profile in self.view.profiles()}
        for worker in self._profiles.keys() - profiles.keys():
            self._loads.remove_worker(worker)
        for profile in profiles.values():
            self._loads.put_worker(profile)
        self._profiles = profiles
        self._choose_fleet()

    def _choose_fleet(self) -> None:
        """The workers of the largest domain: KV of another one (an upgrade under way) means nothing to them."""
        by_domain: dict[DomainId, list[WorkerProfile]] = {}
        for profile in self._profiles.values():
            by_domain.setdefault(profile.card.domain.domain_id, []).append(profile)
        self._domain_id, self._fleet_profiles = max(
            by_domain.items(), key=lambda item: (len(item[1]), item[0]), default=(DomainId(""), [])
        )
        self._fleet = Fleet.of(self._fleet_profiles)
        if self.split is not None:
            self.split.set_fleet(StoreRoom.of(self._fleet_profiles), ReusePrice.of(self._fleet_profiles))

    # ---- requests ----

    def decide(self, request: RoutedRequest, *, excluded: frozenset[WorkerId], attempt: int, now_s: float) -> Decided:
        """Places a request and records what that will cause.

        The worker that the client chose is the target of the first attempt; later ones go anywhere.

        Raises:
            BadRequestError: a span does not fit the prompt, or the chosen worker cannot take it.
            NoWorkerError: no worker can take the prompt.
        """
        started_s = time.perf_counter()
        self._follow_view()
        if not self._fleet_profiles:
            raise NoWorkerError("no prefill worker is known yet")
        pic = self._pic if request.options.pic is None else request.options.pic
        fusion = request.options.fusion
        chosen_id = request.worker_id if attempt == 1 else None
        if chosen_id is not None and all(worker.worker_id != chosen_id for worker in self._fleet.workers):
            raise BadRequestError(f"there is no prefill worker {chosen_id}")
        domain_id = tenant_domain(self._domain_id, request.options.cache_salt)
        layout = self._cut(request, pic)
        coverage = self.view.coverage(layout, domain_id, self._fleet.workers, now_s)
        question = PlanQuestion(
            request_id=request.request_id,
            domain_id=domain_id,
            layout=layout,
            coverage=coverage,
            fleet=self._fleet if fusion is None else self._fleet.with_fusion(fusion),
            load=self._loads.snapshot(self._fleet.workers, now_s),
            settings=self._planner_settings if pic else self._exact_settings,
            excluded=frozenset(worker for worker in self._fleet.workers if worker.worker_id in excluded),
            only_target=chosen_id,
        )
        answer = plan_prefill(question, now_s)
        if answer is None and chosen_id is not None:
            raise BadRequestError(f"prefill worker {chosen_id} cannot take this prompt")
        if answer is None:
            raise NoWorkerError("no prefill worker can take this prompt now")
        self._record(layout, answer, now_s)
        unknown = np.flatnonzero(~np.logical_or.reduce(coverage.segment_states, axis=1)).tolist()
        return Decided(
            answer=answer,
            decision=Decision(
                request_id=request.request_id,
                plan=answer.plan,
                prompt_tokens=layout.num_tokens,
                candidates=answer.candidates,
                decision_us=(time.perf_counter() - started_s) * _US_PER_S,
                attempt=attempt,
                num_workers=len(self._fleet.workers),
                is_bound=chosen_id is not None,
                split=None if self.split is None else self.split.now,
                unknown_segments=tuple(unknown),
            ),
            helpers=tuple(helper_dispatch(request.token_ids, answer.plan, helper) for helper in answer.helpers),
            domain_id=domain_id,
            unknown_segments=frozenset(unknown),
            layout=layout,
            best_prefix_tokens=int(coverage.prefix_tokens.max()),
        )

    def _cut(self, request: RoutedRequest, pic: bool) -> PromptLayout:
        options = request.options
        lineage = lineage_of(
            pic=pic, deployment_has_pic=self._pic, cache_salt=options.cache_salt, fusion=options.fusion
        )
        block_size_tokens = self.block_size_tokens
        hashes = (
            self._hash_salted(request.tokens, block_size_tokens, lineage)
            if lineage
            else hash_blocks(request.tokens, block_size_tokens)
        )
        try:
            return cut_prompt(
                request.tokens,
                self._cutter,
                block_size_tokens=block_size_tokens,
                block_hashes=hashes,
                spans=options.spans,
                pic=pic,
            )
        except SpanError as error:
            raise BadRequestError(str(error)) from error

    def _record(self, layout: PromptLayout, answer: PlanAnswer, now_s: float) -> None:
        request_id, target = answer.plan.request_id, answer.plan.target
        self._recent_plans.append(answer.plan)
        self.view.record_dispatch(layout, answer)
        self._loads.record_dispatch(request_id, target, answer.work, runnable_at_s=answer.runnable_at_s, now_s=now_s)
        for helper in answer.helpers:
            self._loads.record_dispatch(request_id, helper.worker, helper.work, runnable_at_s=now_s, now_s=now_s)
        for transfer in answer.transfers:
            self._loads.record_transfer(transfer.source, target, transfer.num_tokens, now_s=now_s)

    def record_dispatch(self, recorded: Recorded, now_s: float) -> None:
        """Another router has placed a request."""
        self._follow_view()
        self._record(recorded.layout, recorded.answer, now_s)

    def record_receipt(self, decided: Recorded, receipt: Receipt, now_s: float) -> Learned:
        """Corrects view and load by what really happened."""
        repeated_tokens = self._repeated_tokens(decided, receipt)
        self.view.record_receipt(decided.plan, receipt, now_s)
        self._loads.record_receipt(decided.plan.request_id, decided.plan.target, receipt.work, now_s=now_s)
        return Learned(repeated_tokens=repeated_tokens, ghost_hits=self._learn_use(decided, receipt))

    def _learn_use(self, decided: Recorded, receipt: Receipt) -> GhostHits:
        if self.split is None:
            return NO_GHOST_HITS
        use = PromptUse.of(
            decided.layout,
            receipt,
            domain_id=decided.domain_id,
            best_prefix_tokens=decided.best_prefix_tokens,
            unknown_segments=decided.unknown_segments,
        )
        return self.split.record_use(use)

    def _repeated_tokens(self, decided: Recorded, receipt: Receipt) -> int:
        """Of the segments that were unknown at the decision, those computed here that others turn out to have.

        Not those that another worker has because of a later decision: then this one was the first to compute it. Nor
        those that a helper computed for another place of the same prompt.
        """
        plan = decided.plan
        unknown = {plan.segments[index].segment_hash for index in decided.unknown_segments}
        repeated = {
            outcome.segment_hash: outcome.end - outcome.start - outcome.prefix_tokens
            for outcome in receipt.segments
            if outcome.segment_hash in unknown
            and outcome.planned is outcome.done is Source.COMPUTE
            and self.view.is_held_elsewhere(plan.domain_id, outcome.segment_hash, plan.target)
        }
        if not repeated:
            return 0
        caused = self._caused_since(plan)
        caused.update(segment.segment_hash for segment in plan.segments if segment.source is Source.COMPUTE_AT)
        return sum(tokens for segment_hash, tokens in repeated.items() if segment_hash not in caused)

    def _caused_since(self, plan: Plan) -> set[SegmentHash]:
        """Segments of all plans after this one of the same domain. O(plans that are remembered)."""
        later = takewhile(lambda other: other is not plan, reversed(self._recent_plans))
        return {
            segment.segment_hash for other in later if other.domain_id == plan.domain_id for segment in other.segments
        }

    def record_failure(self, decided: Recorded, now_s: float) -> None:
        """The target will not deliver: nothing that was expected there will come."""
        target = decided.plan.target
        self.view.record_failure(decided.plan.request_id, target)
        self._loads.record_failure(decided.plan.request_id, target, now_s=now_s)

    def record_helper_done(self, request_id: RequestId, worker: WorkerWithDpRank, now_s: float) -> None:
        self.view.record_helper_done(request_id, worker, now_s)
        self._loads.record_receipt(request_id, worker, None, now_s=now_s)

    def record_helper_failure(self, request_id: RequestId, worker: WorkerWithDpRank, now_s: float) -> None:
        self.view.record_failure(request_id, worker)
        self._loads.record_failure(request_id, worker, now_s=now_s)


def helper_dispatch(prompt_token_ids: Sequence[int], plan: Plan, helper: HelperWork) -> HelperDispatch:
    """What a plan asks of one helper."""
    segments = [plan.segments[index] for index in helper.segment_indices]
    return HelperDispatch(
        worker=helper.worker,
        task=HelperTask(
            for_request=plan.request_id,
            domain_id=plan.domain_id,
            segments=tuple((segment.segment_hash, segment.end - segment.start) for segment in segments),
        ),
        prompt_token_ids=prompt_token_ids,
        spans=tuple((segment.start, segment.end) for segment in segments),
    )
