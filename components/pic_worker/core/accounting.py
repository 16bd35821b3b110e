"""The receipt of a finished prefill."""

from nebula_protocol.ids import EventId, WorkerEpoch, WorkerWithDpRank
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason, Receipt, SegmentOutcome, Timing
from nebula_protocol.subjects import Topic
from pic_worker.core.compute_work import Run, StepLedger, runs_between
from pic_worker.core.request_state import HelperState, PromptState, SegmentState
from pic_worker.core.store import TwoClassStore

_INVALID = frozenset((FallbackReason.NOT_THERE, FallbackReason.TOKENS_DIFFER, FallbackReason.SOURCE_GONE))
_PLANNED_HITS = frozenset((Source.LOCAL, Source.FETCH, Source.JOIN))


def prompt_receipt(
    state: PromptState,
    *,
    worker: WorkerWithDpRank,
    epoch: WorkerEpoch,
    store: TwoClassStore,
    block_size_tokens: int,
    last_event_ids: dict[Topic, EventId],
    now_s: float,
) -> Receipt:
    """What was really done for a prompt whose last step ends now."""
    prefix_tokens = state.blocks.match.num_blocks * block_size_tokens if state.blocks is not None else 0
    hit_tokens = sum(segment.hit_tokens for segment in state.segments)
    fetched_tokens = sum(segment.hit_tokens for segment in state.segments if _was_fetched(segment, worker))
    return Receipt(
        request_id=state.request_id,
        worker=worker,
        epoch=epoch,
        prompt_tokens=state.num_tokens,
        prefix_hit_tokens=prefix_tokens,
        segment_hit_tokens=hit_tokens,
        local_hit_tokens=hit_tokens - fetched_tokens,
        fetched_hit_tokens=fetched_tokens,
        recomputed_tokens=sum(segment.recomputed_tokens for segment in state.segments),
        computed_tokens=state.num_tokens - prefix_tokens - hit_tokens,
        invalid_hit_tokens=_invalid_hit_tokens(state, prefix_tokens, block_size_tokens),
        segments=tuple(_outcome(state, segment, store) for segment in state.segments),
        timing=_timing(state.submitted_at_s, _ready_at_s(state), state.work.ledger, now_s),
        work=state.work.ledger.step_work(),
        last_event_ids=last_event_ids,
    )


def helper_receipt(
    state: HelperState,
    *,
    worker: WorkerWithDpRank,
    epoch: WorkerEpoch,
    store: TwoClassStore,
    last_event_ids: dict[Topic, EventId],
    now_s: float,
) -> Receipt:
    """What was really done for helper work; a segment that was here already counts as a local hit."""
    outcomes = _helper_outcomes(state, store)
    hit_tokens = sum(outcome.end - outcome.start for outcome in outcomes if outcome.done is Source.LOCAL)
    return Receipt(
        request_id=state.request_id,
        worker=worker,
        epoch=epoch,
        prompt_tokens=state.num_tokens,
        prefix_hit_tokens=0,
        segment_hit_tokens=hit_tokens,
        local_hit_tokens=hit_tokens,
        fetched_hit_tokens=0,
        recomputed_tokens=0,
        computed_tokens=state.num_tokens - hit_tokens,
        invalid_hit_tokens=0,
        segments=outcomes,
        timing=_timing(state.submitted_at_s, state.submitted_at_s, state.work.ledger, now_s),
        work=state.work.ledger.step_work(),
        last_event_ids=last_event_ids,
    )


def _outcome(state: PromptState, segment: SegmentState, store: TwoClassStore) -> SegmentOutcome:
    plan = segment.plan
    reused = bool(segment.loaded)
    loaded_from = segment.came_by if reused else Source.COMPUTE
    done = Source.LOCAL if segment.is_covered else loaded_from
    return SegmentOutcome(
        start=plan.start,
        end=plan.end,
        segment_hash=plan.segment_hash,
        # A worker's own cut has no plan: it meant to do what it did.
        planned=plan.source if state.request.has_plan else done,
        done=done,
        prefix_tokens=segment.prefix_tokens,
        recomputed_tokens=segment.recomputed_tokens,
        fallback=segment.fallback,
        origin=segment.origin if reused else None,
        stored=store.has_segment(segment.key),
    )


def _helper_outcomes(state: HelperState, store: TwoClassStore) -> tuple[SegmentOutcome, ...]:
    computed = set(state.to_compute)
    outcomes: list[SegmentOutcome] = []
    start = 0
    for index, (segment_hash, num_tokens) in enumerate(state.request.segments):
        done = Source.COMPUTE if index in computed else Source.LOCAL
        outcomes.append(
            SegmentOutcome(
                start=start,
                end=start + num_tokens,
                segment_hash=segment_hash,
                planned=Source.COMPUTE,
                done=done,
                stored=store.has_segment(state.segment_key(index)),
            )
        )
        start += num_tokens
    return tuple(outcomes)


def _was_fetched(segment: SegmentState, worker: WorkerWithDpRank) -> bool:
    return segment.came_by is not Source.LOCAL and segment.plan.from_worker not in (None, worker)


def _invalid_hit_tokens(state: PromptState, prefix_tokens: int, block_size_tokens: int) -> int:
    """Tokens planned as a hit that were not there: of the expected prefix, and of segments behind it."""
    usable = (state.num_tokens - 1) // block_size_tokens * block_size_tokens
    expected = min(state.request.expected_prefix_tokens, usable)
    invalid = 0
    if expected > prefix_tokens:
        # What segments made up for was a hit after all.
        hits = [_clipped(segment, prefix_tokens, expected) for segment in state.segments if segment.hit_tokens]
        missing = runs_between(prefix_tokens, expected, [run for run in hits if run.start < run.end])
        invalid = sum(run.end - run.start for run in missing)
    behind = max(expected, prefix_tokens)
    for segment in state.segments:
        if segment.fallback in _INVALID and segment.plan.source in _PLANNED_HITS:
            invalid += max(0, segment.plan.end - max(segment.plan.start, behind))
    return invalid


def _clipped(segment: SegmentState, start: int, end: int) -> Run:
    hit_start = segment.plan.start + segment.prefix_tokens
    return Run(max(hit_start, start), min(hit_start + segment.hit_tokens, end))


def _ready_at_s(state: PromptState) -> float:
    return state.deadline_s if state.ready_at_s is None else state.ready_at_s


def _timing(submitted_at_s: float, ready_at_s: float, ledger: StepLedger, now_s: float) -> Timing:
    started_at_s = now_s if ledger.started_at_s is None else ledger.started_at_s
    wait_s = min(ready_at_s, started_at_s) - submitted_at_s
    queue_s = started_at_s - submitted_at_s - wait_s
    compute_s = now_s - started_at_s
    return Timing(queue_s=queue_s, wait_s=wait_s, compute_s=compute_s, total_s=queue_s + wait_s + compute_s)
