"""Finds the KV of a prompt's segments: asked for at submission, decided when the prompt's turn comes."""

from dataclasses import dataclass, field

from nebula_protocol.fusion import Fusion
from nebula_protocol.ids import Origin, SegmentHash, WorkerWithDpRank
from nebula_protocol.messages import FetchedSegment, WantedSegment
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason
from pic_worker.core.compute_work import Run
from pic_worker.core.deadline import is_due
from pic_worker.core.effects import FetchCommand
from pic_worker.core.request_state import PromptState, SegmentState, Standing
from pic_worker.core.segment_shelf import SegmentShelf
from pic_worker.core.store import Kept
from pic_worker.core.store_entry import SegmentKey
from pic_worker.core.stream import Stream

_REMOTE = frozenset((Source.FETCH, Source.JOIN, Source.COMPUTE_AT))


@dataclass(slots=True)
class SegmentResolver:
    shelf: SegmentShelf
    own: WorkerWithDpRank
    _joined: dict[SegmentKey, list[tuple[PromptState, SegmentState]]] = field(default_factory=dict)

    # ---- at submission ----

    def begin(self, state: PromptState, covered_tokens: int, vetoed: frozenset[SegmentHash], now_s: float) -> None:
        """Pins what is here, joins what is coming here, and marks what must be fetched.

        Args:
            covered_tokens: leading tokens that the prefix covers; nothing is fetched for them.
            vetoed: segments that are not worth fetching.
        """
        for segment in state.segments:
            if segment.plan.end > covered_tokens:
                self._begin_segment(state, segment, vetoed)
        state.num_waiting = sum(segment.is_waiting for segment in state.segments)
        if not state.num_waiting:
            state.ready_at_s = now_s

    def is_remote(self, state: PromptState, segment: SegmentState) -> bool:
        """Whether the plan brings the segment from another worker."""
        plan = segment.plan
        from_peer = plan.source in _REMOTE and plan.from_worker is not None and plan.from_worker != self.own
        return from_peer and state.request.has_plan and not state.request.domain_differs

    def fetches(self, state: PromptState) -> list[FetchCommand]:
        """One command per peer for the segments that were marked, each hash once."""
        wanted: dict[WorkerWithDpRank, dict[SegmentHash, WantedSegment]] = {}
        for segment in state.segments:
            plan = segment.plan
            if segment.standing is Standing.FETCHING and plan.from_worker is not None:
                wanted.setdefault(plan.from_worker, {})[plan.segment_hash] = WantedSegment(
                    segment_hash=plan.segment_hash,
                    num_tokens=plan.end - plan.start,
                    join=plan.source is not Source.FETCH,
                )
        return [
            FetchCommand(
                request_id=state.request_id,
                from_worker=peer,
                domain_id=state.request.domain_id,
                wait_s=state.request.wait_budget_s,
                segments=tuple(segments.values()),
            )
            for peer, segments in wanted.items()
        ]

    def _begin_segment(self, state: PromptState, segment: SegmentState, vetoed: frozenset[SegmentHash]) -> None:
        stored = self.shelf.find(segment.key, segment.token_bytes)
        if not state.expects_reuse(segment) or state.request.domain_differs:
            if stored is None:
                self._begin_producing(state, segment)
        elif stored is not None:
            self._pin(segment, Source.LOCAL, stored.origin)
        elif self.is_remote(state, segment):
            if segment.plan.segment_hash in vetoed:
                segment.fallback = FallbackReason.VETO
                self._begin_producing(state, segment)
                return
            segment.standing = Standing.FETCHING
            if _is_kept(segment):
                self._register(state, segment)
        elif self.shelf.in_flight.is_coming_before(segment.key, state.arrival_order):
            segment.standing = Standing.JOINED
            self._joined.setdefault(segment.key, []).append((state, segment))
        else:
            self._begin_producing(state, segment)

    # ---- while waiting ----

    def stream(self, state: PromptState, segment_hash: SegmentHash, stream: Stream) -> None:
        """It is known when a fetched segment arrives."""
        for segment in state.segments:
            if segment.standing is Standing.FETCHING and segment.plan.segment_hash == segment_hash:
                segment.stream = stream

    def arrive(
        self, state: PromptState, segment_hash: SegmentHash, outcome: FetchedSegment | FallbackReason, now_s: float
    ) -> None:
        """What became of a fetch. A segment that comes after the prompt's turn is still stored."""
        for segment in state.segments:
            if segment.plan.segment_hash != segment_hash:
                continue
            if segment.standing is Standing.FETCHING:
                self._arrive(state, segment, outcome, now_s)
            elif segment.standing is Standing.STREAMING:
                self._end_stream(state, segment, outcome, now_s)
            elif state.is_settled and _is_kept(segment) and isinstance(outcome, FetchedSegment):
                self._store_fetched(segment, outcome, now_s)

    def _arrive(
        self, state: PromptState, segment: SegmentState, outcome: FetchedSegment | FallbackReason, now_s: float
    ) -> None:
        failure = outcome if isinstance(outcome, FallbackReason) else _failure_of(segment, outcome)
        state.record_arrival(now_s)
        if failure is not None or isinstance(outcome, FallbackReason):
            segment.standing, segment.fallback = Standing.LOOK_UP, failure
            self._begin_producing(state, segment)
            return
        kept = self._store_fetched(segment, outcome, now_s) if _is_kept(segment) else Kept.REFUSED
        stored = self.shelf.find(segment.key, segment.token_bytes) if kept is not Kept.REFUSED else None
        if stored is not None:
            self._pin(segment, segment.plan.source, stored.origin)
        else:
            segment.standing = Standing.STAGED
            segment.came_by, segment.origin = segment.plan.source, outcome.origin
        self._stop_producing(state, segment, now_s)

    def _end_stream(
        self, state: PromptState, segment: SegmentState, outcome: FetchedSegment | FallbackReason, now_s: float
    ) -> None:
        """The step that uses it has all of it now, or has computed with what never came."""
        segment.standing = Standing.DONE
        failure = outcome if isinstance(outcome, FallbackReason) else _failure_of(segment, outcome)
        if failure is not None or isinstance(outcome, FallbackReason):
            segment.fallback, segment.is_broken = failure, True
            self._begin_producing(state, segment)
            return
        segment.origin = outcome.origin
        if _is_kept(segment):
            self._store_fetched(segment, outcome, now_s)
        self._stop_producing(state, segment, now_s)

    def _store_fetched(self, segment: SegmentState, outcome: FetchedSegment, now_s: float) -> Kept:
        if outcome.origin is None or _failure_of(segment, outcome) is not None:
            return Kept.REFUSED
        return self.shelf.put(segment.key, segment.token_bytes, outcome.origin, now_s)

    def segment_stored(self, key: SegmentKey, now_s: float) -> None:
        """Those that joined it have it now."""
        for state, segment in self._joined.pop(key, ()):
            segment.standing = Standing.LOOK_UP
            stored = self.shelf.find(key, segment.token_bytes)
            if stored is not None:
                joined = Source.LOCAL if segment.plan.source is Source.LOCAL else Source.JOIN
                self._pin(segment, joined, stored.origin)
            state.record_arrival(now_s)

    def segment_given_up(self, key: SegmentKey, now_s: float) -> None:
        """Those that joined it and have no earlier request left to wait for will compute it."""
        still: list[tuple[PromptState, SegmentState]] = []
        for state, segment in self._joined.pop(key, ()):
            if self.shelf.in_flight.is_coming_before(key, state.arrival_order):
                still.append((state, segment))
                continue
            segment.standing = Standing.LOOK_UP
            self._begin_producing(state, segment)
            state.record_arrival(now_s)
        if still:
            self._joined[key] = still

    # ---- at the prompt's turn ----

    def settle(self, state: PromptState, prefix_tokens: int, now_s: float) -> None:
        """Decides for each segment whether its KV is loaded or its tokens are computed."""
        for segment in state.segments:
            plan = segment.plan
            segment.prefix_tokens = min(max(prefix_tokens - plan.start, 0), plan.end - plan.start)
            if segment.is_waiting:
                self._stop_waiting(state, segment, now_s)
            if segment.is_covered:
                segment.fallback = None
                self._let_go(segment)
                self._stop_producing(state, segment, now_s)
                continue
            if segment.standing is Standing.LOOK_UP:
                stored = self.shelf.find(segment.key, segment.token_bytes)
                if stored is not None:
                    self._pin(segment, Source.LOCAL, stored.origin)
            # The last token is always computed: its logits choose the first answer token.
            self._choose(state, segment, plan.start + segment.prefix_tokens, min(plan.end, state.num_tokens - 1), now_s)
        state.num_waiting = 0
        state.is_settled = True
        if state.ready_at_s is None:
            state.ready_at_s = now_s

    def _stop_waiting(self, state: PromptState, segment: SegmentState, now_s: float) -> None:
        if segment.stream is not None and state.usable_at_s is not None and is_due(state.usable_at_s, now_s):
            segment.standing, segment.came_by = Standing.STREAMING, segment.plan.source
            return
        if segment.standing is Standing.JOINED:
            self._leave_join(state, segment)
        segment.standing, segment.fallback = Standing.LOOK_UP, FallbackReason.LATE

    def _leave_join(self, state: PromptState, segment: SegmentState) -> None:
        joined = self._joined[segment.key]
        joined.remove((state, segment))
        if not joined:
            del self._joined[segment.key]

    def _choose(self, state: PromptState, segment: SegmentState, start: int, end: int, now_s: float) -> None:
        is_streaming = segment.standing is Standing.STREAMING
        has_kv = is_streaming or segment.standing is Standing.PINNED or segment.standing is Standing.STAGED
        recomputed_tokens = state.fusion.recomputed_tokens(end - start)
        if has_kv and end - start > recomputed_tokens:
            segment.loaded = loaded_runs(state.fusion, start, end, recomputed_tokens)
            segment.recomputed_tokens = recomputed_tokens
            segment.fallback = None
            if not is_streaming:
                self._stop_producing(state, segment, now_s)
            return
        if state.expects_reuse(segment):
            segment.fallback = FallbackReason.VETO if has_kv else segment.fallback or _why_absent(state)
        self._let_go(segment)
        self._begin_producing(state, segment)

    # ---- while computing ----

    def drop_broken(self, state: PromptState) -> int | None:
        """Where computing must begin again since a copy broke off in the step that used it; None when none did."""
        broken = [segment for segment in state.segments if segment.is_broken]
        for segment in broken:
            segment.is_broken, segment.loaded, segment.recomputed_tokens = False, (), 0
        return min((segment.plan.start + segment.prefix_tokens for segment in broken), default=None)

    def finish_loading(self, state: PromptState) -> None:
        """The reused KV is in the device tier."""
        for segment in state.segments:
            if segment.loaded:
                self._let_go(segment)

    def store_complete(self, state: PromptState, num_complete: int, now_s: float) -> None:
        """Keeps the segments among the leading `num_complete` tokens that this prompt has computed."""
        for segment in self.newly_complete(state, num_complete):
            segment.is_complete = True
            # A segment at offset 0 is its own prefix, which the prefix cache keeps.
            if segment.plan.start > 0:
                self.shelf.put(segment.key, segment.token_bytes, Origin.IN_CONTEXT, now_s)
            self._stop_producing(state, segment, now_s)

    def newly_complete(self, state: PromptState, num_complete: int) -> list[SegmentState]:
        """Those that this prompt has computed when its leading `num_complete` tokens are, and has not kept yet."""
        return [
            segment
            for segment in state.segments
            if segment.plan.end <= num_complete
            and not segment.loaded
            and not segment.is_complete
            and not segment.is_covered
        ]

    def forget(self, state: PromptState, now_s: float) -> None:
        """Lets go of all that the prompt has or waits for."""
        for segment in state.segments:
            if segment.standing is Standing.JOINED:
                self._leave_join(state, segment)
            self._let_go(segment)
            self._stop_producing(state, segment, now_s)

    # ---- pins and registrations ----

    def _pin(self, segment: SegmentState, came_by: Source, origin: Origin) -> None:
        self.shelf.store.pin_segment(segment.key)
        segment.standing, segment.came_by, segment.origin = Standing.PINNED, came_by, origin

    def _let_go(self, segment: SegmentState) -> None:
        if segment.standing is Standing.PINNED:
            self.shelf.store.unpin_segment(segment.key)
        segment.standing = Standing.DONE

    def _begin_producing(self, state: PromptState, segment: SegmentState) -> None:
        """The prompt will compute the segment, and keep it unless it is its own prefix."""
        if segment.plan.start > 0:
            self._register(state, segment)

    def _register(self, state: PromptState, segment: SegmentState) -> None:
        if not segment.is_producing:
            segment.is_producing = True
            self.shelf.begin(segment.key, state.arrival_order)

    def _stop_producing(self, state: PromptState, segment: SegmentState, now_s: float) -> None:
        if segment.is_producing:
            segment.is_producing = False
            self.shelf.end(segment.key, state.arrival_order, now_s)


def loaded_runs(fusion: Fusion, start: int, end: int, recomputed_tokens: int) -> tuple[Run, ...]:
    """What is left of [start, end) without the recomputed tokens.

    LegoLink's are the leading ones. Which ones CacheBlend will choose is not known: a run in the middle attends to as
    much as the same number of tokens spread evenly.
    """
    if not fusion.ratio:
        return (Run(start + recomputed_tokens, end),)
    first = start + (end - start - recomputed_tokens) // 2
    runs = (Run(start, first), Run(first + recomputed_tokens, end))
    return tuple(run for run in runs if run.start < run.end)


def _is_kept(segment: SegmentState) -> bool:
    """Whether a fetched copy is stored. At offset 0 it becomes the prompt's prefix, which is kept anyway."""
    return segment.plan.keep and segment.plan.start > 0


def _failure_of(segment: SegmentState, fetched: FetchedSegment) -> FallbackReason | None:
    if fetched.token_bytes is None or fetched.origin is None:
        return FallbackReason.NOT_THERE
    return None if fetched.token_bytes == segment.token_bytes else FallbackReason.TOKENS_DIFFER


def _why_absent(state: PromptState) -> FallbackReason:
    return FallbackReason.DOMAIN_DIFFERS if state.request.domain_differs else FallbackReason.NOT_THERE
