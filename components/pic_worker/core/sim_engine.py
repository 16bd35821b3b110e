"""The engine as a state machine: requests in, timed steps and evidence out."""

from collections import deque
from typing import NamedTuple

from nebula_protocol.ids import RequestId, SegmentHash
from nebula_protocol.messages import FetchedSegment, FetchRequest
from nebula_protocol.receipt import FallbackReason
from pic_worker.core.accounting import helper_receipt, prompt_receipt
from pic_worker.core.block_chain import chain_blocks
from pic_worker.core.deadline import is_due
from pic_worker.core.device_pool import DevicePool
from pic_worker.core.effects import Effects, FetchCommand, FinishedPrefill, TicketId
from pic_worker.core.engine_config import EngineConfig
from pic_worker.core.engine_request import EngineRequest, HelperRequest
from pic_worker.core.engine_stats import EngineStats
from pic_worker.core.errors import DuplicateRequestError, NoStepError, PromptRefusedError
from pic_worker.core.event_log import EventLog, StateSnapshot
from pic_worker.core.helper_prefill import HelperPrefill
from pic_worker.core.prefix_cache import PrefixCache
from pic_worker.core.prompt_prefill import PromptPrefill
from pic_worker.core.request_state import EngineJob, HelperState, PromptState, segment_states
from pic_worker.core.scheduler import StepScheduler
from pic_worker.core.segment_resolver import SegmentResolver
from pic_worker.core.segment_shelf import SegmentShelf
from pic_worker.core.segment_source import Produced, SegmentSource
from pic_worker.core.step_cost import LoadCost, StepCost
from pic_worker.core.step_in_flight import StepInFlight
from pic_worker.core.step_plan import StepShare, Turn
from pic_worker.core.store import TwoClassStore
from pic_worker.core.store_entry import SegmentKey
from pic_worker.core.stream import Stream


class _Hold(NamedTuple):
    """Names the prompt only: most are pulled long before, and their states should go then."""

    ends_at_s: float
    request_id: RequestId
    arrival_order: int


class SimEngine:
    """Iteration-level batching over a two-tier cache, in calibrated time.

    `now_s` is simulated time and never goes back. The driver loops: `next_step`; when it gives a step, wait
    `duration_s` and call `finish_step`; when it gives none, wait for any other call or for `next_deadline_s`, then
    `advance` and ask again. It carries out the `Effects` of every call before the next call.
    """

    def __init__(
        self, config: EngineConfig, step_cost: StepCost, load_cost: LoadCost, store: TwoClassStore | None = None
    ) -> None:
        """
        Args:
            store: an empty one of another kind; by default as `config` says.
        """
        self._config = config
        self._step_cost = step_cost
        self._log = EventLog(config.worker.dp_rank)
        self._store = store or TwoClassStore(
            capacity_tokens=config.store_capacity_tokens,
            prefix_ratio=config.prefix_ratio,
            block_size_tokens=config.block_size_tokens,
        )
        self._pool = DevicePool(config.device_capacity_blocks)
        self._prefix = PrefixCache(self._pool, self._store, self._log, config.block_size_tokens)
        self._shelf = SegmentShelf(self._store, self._log, self._prefix)
        self._resolver = SegmentResolver(self._shelf, config.worker)
        self._source = SegmentSource(self._shelf, config.kv_bytes_per_token, config.lease_s, config.join_grace_s)
        self._shelf.watch(self._resolver)
        self._shelf.watch(self._source)
        self._prompts = PromptPrefill(
            self._prefix,
            self._resolver,
            step_cost,
            load_cost,
            config.peer_link,
            config.veto_ratio,
            config.num_layers,
            config.max_step_tokens,
            config.stream_pieces,
        )
        self._helpers = HelperPrefill(self._prefix, self._shelf)
        self._scheduler = StepScheduler(
            config.max_step_tokens, config.max_running, config.helper_patience_s, config.helper_share_ratio
        )
        self._jobs: dict[RequestId, EngineJob] = {}
        self._held: dict[RequestId, PromptState] = {}
        self._holds: deque[_Hold] = deque()
        self._step: StepInFlight | None = None
        self._num_arrived = 0
        self._num_steps = 0
        self._seen_s = 0.0

    # ---- requests ----

    def submit(self, request: EngineRequest, now_s: float) -> Effects:
        """Takes a prompt; fetches in the effects should start at once.

        Raises:
            DuplicateRequestError: a live request has this id. A prompt that only waits to be pulled gives way.
            PromptRefusedError: it can never run here.
        """
        self._check_new(request.request_id, len(request.tokens), now_s)
        self._end_hold(request.request_id, now_s)
        state = PromptState(
            request=request,
            arrival_order=self._take_arrival_order(),
            submitted_at_s=now_s,
            deadline_s=now_s + request.wait_budget_s,
            fusion=request.fusion or self._config.fusion,
            chain=chain_blocks(request.block_hashes, request.lineage),
            segments=segment_states(request) if self._config.pic else [],
        )
        engine_is_idle = not self._jobs
        self._jobs[request.request_id] = state
        self._scheduler.waiting[request.request_id] = state
        fetches = self._prompts.begin(state, engine_is_idle=engine_is_idle, now_s=now_s)
        return self._effects(fetches=fetches)

    def submit_helper(self, request: HelperRequest, now_s: float) -> Effects:
        """Takes segments to compute alone, after this worker's own prompts.

        Raises:
            DuplicateRequestError: a live request has this id.
            PromptRefusedError: it can never run here.
        """
        self._check_new(request.request_id, len(request.tokens), now_s)
        state = HelperState(request=request, arrival_order=self._take_arrival_order(), submitted_at_s=now_s)
        self._jobs[request.request_id] = state
        self._scheduler.waiting_helpers[request.request_id] = state
        self._helpers.begin(state)
        return self._effects()

    def fetch_finished(
        self,
        request_id: RequestId,
        segment_hash: SegmentHash,
        outcome: FetchedSegment | FallbackReason,
        now_s: float,
    ) -> Effects:
        """A wanted segment has arrived with all its bytes, or will not. Unknown and ended requests are ignored."""
        self._seen_s = now_s
        job = self._jobs.get(request_id) or self._held.get(request_id)
        if isinstance(job, PromptState):
            if self._step is not None:
                self._step.record_arrival(job, self._config.stream_pieces, now_s)
            self._resolver.arrive(job, segment_hash, outcome, now_s)
        return self._effects()

    def fetch_streams(self, request_id: RequestId, segment_hash: SegmentHash, stream: Stream, now_s: float) -> None:
        """A wanted segment is on its way, and a step may meet it; `fetch_finished` follows when all of it is here."""
        self._seen_s = now_s
        job = self._jobs.get(request_id)
        if isinstance(job, PromptState):
            self._prompts.stream(job, segment_hash, stream)

    def abort(self, request_id: RequestId, now_s: float) -> Effects:
        """Forgets a request in any phase and frees all it holds. Unknown ids are ignored."""
        self._seen_s = now_s
        self._end_hold(request_id, now_s)
        job = self._jobs.pop(request_id, None)
        if job is not None:
            self._scheduler.remove(request_id)
            self._release(job, now_s)
        return self._effects()

    # ---- steps ----

    def next_step(self, now_s: float) -> Turn:
        """Forms the next step; gives none while one is in flight or nothing can run."""
        self._advance(now_s)
        if self._step is not None:
            return Turn(None, self._effects())
        shares = self._scheduler.form(self, now_s)
        finished = self._finish_helpers_without_work(now_s)
        if not shares:
            return Turn(None, self._effects(finished=finished))
        pieces = self._config.stream_pieces
        step = self._step = StepInFlight.begin(self._num_steps, shares, self._step_cost, pieces, now_s)
        self._num_steps += 1
        if pieces > 1:
            self._source.begin_step(self._completed_by(shares), step.production, now_s)
        return Turn(step.plan, self._effects(finished=finished))

    def finish_step(self, now_s: float) -> Effects:
        """The step in flight is done: receipts, events, answers to waiting peers.

        Raises:
            NoStepError: none is in flight.
        """
        self._seen_s = now_s
        if self._step is None:
            raise NoStepError
        step, self._step = self._step, None
        self._source.end_step()
        done: list[EngineJob] = []
        for job, share in step.shares:
            if self._jobs.get(job.request_id) is not job:
                continue
            step.record_share(job, share)
            if self._progress(job, now_s):
                done.append(job)
        return self._effects(finished=[self._finish(job, now_s) for job in done])

    def step_stall_s(self, now_s: float) -> float:
        """How much longer the step in flight takes than planned since KV came late that its layers wait for.

        Infinite while it has not come: wait for any other call then. 0 almost always.
        """
        return 0.0 if self._step is None else self._step.stall_s(now_s)

    def admit_prompt(self, state: PromptState, now_s: float) -> bool:
        """For the scheduler: see `PromptPrefill.admit`."""
        return self._prompts.admit(state, now_s)

    def admit_helper(self, state: HelperState, now_s: float) -> bool:
        """For the scheduler: see `HelperPrefill.admit`."""
        return self._helpers.admit(state, now_s)

    def begin_share(self, job: EngineJob) -> None:
        """For the scheduler: see `PromptPrefill.begin_share`."""
        if isinstance(job, PromptState):
            self._prompts.begin_share(job)

    # ---- time ----

    def advance(self, now_s: float) -> Effects:
        """Ends what has timed out: prompt holds, leases, peers' joins."""
        self._advance(now_s)
        return self._effects()

    def next_deadline_s(self) -> float | None:
        """When `advance` and `next_step` are worth calling although nothing else happened."""
        deadlines = [
            state.turn_at_s
            for state in self._scheduler.waiting.values()
            if state.num_waiting and not is_due(state.turn_at_s, self._seen_s)
        ]
        if self._holds:
            deadlines.append(self._holds[0].ends_at_s)
        source_s = self._source.next_deadline_s()
        if source_s is not None:
            deadlines.append(source_s)
        return min(deadlines, default=None)

    # ---- prefill to decode ----

    def held_prompt_tokens(self, request_id: RequestId) -> int:
        """Tokens of a prefilled prompt whose KV still waits to be pulled; 0 when it is not here."""
        state = self._held.get(request_id)
        return state.num_tokens if state is not None else 0

    def prompt_pulled(self, request_id: RequestId) -> int:
        """The decode worker has the prompt's KV: frees it. Returns its tokens, 0 when it is not here any more."""
        num_tokens = self.held_prompt_tokens(request_id)
        self._end_hold(request_id, self._seen_s)
        return num_tokens

    # ---- peers ----

    def serve_fetch(self, request: FetchRequest, ticket: TicketId, now_s: float) -> Effects:
        """A peer asks for segments. The answer is in these effects, or in those of a later call if it must wait."""
        self._seen_s = now_s
        self._source.serve(request, ticket, now_s)
        return self._effects()

    def close_fetch(self, ticket: TicketId) -> None:
        """The transfer to the peer is over (or was given up): the lease on its segments ends."""
        self._source.close(ticket)

    # ---- the whole ----

    def set_split(self, prefix_ratio: float) -> None:
        """Moves the border between the store's classes; entries go only when room is wanted."""
        self._store.set_split(prefix_ratio)

    def clear(self) -> Effects:
        """Drops every entry of both tiers that is not in use."""
        self._prefix.clear()
        return self._effects()

    def state_snapshot(self) -> StateSnapshot:
        """All that is held, with the last event ids that it contains."""
        return StateSnapshot(self._prefix.block_entries(), self._store.segments(), self._log.last_event_ids())

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            num_waiting=len(scheduler.waiting),
            num_running=len(scheduler.running),
            num_helpers=len(scheduler.waiting_helpers) + len(scheduler.running_helpers),
            num_held=len(self._held),
            num_segments_in_flight=len(self._shelf.in_flight),
            device_held_blocks=self._pool.num_held,
            device_cached_blocks=self._pool.num_cached,
            store_prefix_tokens=self._store.prefix_used_tokens,
            store_segment_tokens=self._store.segment_used_tokens,
            store_pinned_tokens=self._store.pinned_tokens,
        )

    # ---- inside ----

    def _check_new(self, request_id: RequestId, num_tokens: int, now_s: float) -> None:
        self._seen_s = now_s
        if request_id in self._jobs:
            raise DuplicateRequestError(request_id)
        size_tokens = self._config.block_size_tokens
        if num_tokens == 0 or -(-num_tokens // size_tokens) > self._pool.capacity_blocks:
            raise PromptRefusedError(request_id, num_tokens, self._pool.capacity_blocks * size_tokens)

    def _take_arrival_order(self) -> int:
        self._num_arrived += 1
        return self._num_arrived

    def _completed_by(self, shares: list[tuple[EngineJob, StepShare]]) -> dict[SegmentKey, Produced]:
        """What will be stored when the step with these shares ends."""
        completed: dict[SegmentKey, Produced] = {}
        for job, _ in shares:
            produced = self._prompts.produced(job) if isinstance(job, PromptState) else self._helpers.produced(job)
            completed.update(produced)
        return completed

    def _progress(self, job: EngineJob, now_s: float) -> bool:
        if isinstance(job, PromptState):
            return self._prompts.progress(job, now_s)
        return self._helpers.progress(job, now_s)

    def _finish(self, job: EngineJob, now_s: float) -> FinishedPrefill:
        del self._jobs[job.request_id]
        self._scheduler.remove(job.request_id)
        config, last_event_ids = self._config, self._log.last_event_ids()
        if isinstance(job, HelperState):
            receipt = helper_receipt(
                job,
                worker=config.worker,
                epoch=config.epoch,
                store=self._store,
                last_event_ids=last_event_ids,
                now_s=now_s,
            )
            self._helpers.release(job, now_s)
            return FinishedPrefill(receipt, is_helper=True)
        receipt = prompt_receipt(
            job,
            worker=config.worker,
            epoch=config.epoch,
            store=self._store,
            block_size_tokens=config.block_size_tokens,
            last_event_ids=last_event_ids,
            now_s=now_s,
        )
        if job.request.hold_prompt:
            self._held[job.request_id] = job
            self._holds.append(_Hold(now_s + config.prompt_hold_s, job.request_id, job.arrival_order))
        else:
            self._prompts.release(job, now_s)
        return FinishedPrefill(receipt, is_helper=False)

    def _finish_helpers_without_work(self, now_s: float) -> list[FinishedPrefill]:
        """Everything they were asked for was stored by others meanwhile."""
        idle = [
            job
            for job in self._scheduler.running_helpers.values()
            if not job.work.ledger.num_steps and not job.to_compute
        ]
        return [self._finish(helper, now_s) for helper in idle]

    def _release(self, job: EngineJob, now_s: float) -> None:
        if isinstance(job, PromptState):
            self._prompts.release(job, now_s)
        else:
            self._helpers.release(job, now_s)

    def _end_hold(self, request_id: RequestId, now_s: float) -> None:
        state = self._held.pop(request_id, None)
        if state is not None:
            self._prompts.release(state, now_s)

    def _advance(self, now_s: float) -> None:
        self._seen_s = now_s
        while self._holds and is_due(self._holds[0].ends_at_s, now_s):
            hold = self._holds.popleft()
            state = self._held.get(hold.request_id)
            if state is not None and state.arrival_order == hold.arrival_order:
                self._end_hold(hold.request_id, now_s)
        self._source.advance(now_s)

    def _effects(
        self, *, fetches: list[FetchCommand] | None = None, finished: list[FinishedPrefill] | None = None
    ) -> Effects:
        return Effects(
            # What the step computes is there when it ends, though the step itself counts on it before.
            events=self._log.drain(with_device_events=self._step is None or self._config.announces_early),
            fetches=tuple(fetches or ()),
            answers=self._source.drain(),
            finished=tuple(finished or ()),
        )
