"""A placement as records: the plan for the wire, and what the router must remember of it."""

from nebula_protocol.plan import Estimate, Plan, SegmentPlan, Source
from nebula_router.core.candidates import tell_candidates
from nebula_router.core.coverage import NOT_HELD
from nebula_router.core.estimator import Estimates
from nebula_router.core.placement import Placement
from nebula_router.core.plan_answer import HelperWork, PlanAnswer, Transfer
from nebula_router.core.plan_question import PlanQuestion
from nebula_router.core.queued_work import QueuedWork

# A copy that comes later than estimated is still worth this much waiting.
_WAIT_GRACE_S = 0.05


def write_answer(
    question: PlanQuestion, estimates: Estimates, placement: Placement, columns: list[int], now_s: float
) -> PlanAnswer:
    """`columns` are the workers that were considered, best first."""
    draft, workers = placement.draft, question.fleet.workers
    for share in placement.shares:
        for index in share.segment_indices:
            draft.sources[index] = Source.COMPUTE_AT
            draft.from_columns[index] = share.helper.column
    copied = tuple(index for index, column in enumerate(draft.from_columns) if column != draft.column)
    waits = placement.arrive_in_s > 0
    plan = Plan(
        request_id=question.request_id,
        domain_id=question.domain_id,
        target=workers[draft.column],
        segments=_segment_plans(question, placement),
        prefix_hit_tokens=draft.prefix_tokens,
        wait_budget_s=placement.arrive_in_s * (1 + question.settings.wait_slack_ratio) + _WAIT_GRACE_S
        if waits
        else 0.0,
        estimate=_estimate(question, placement),
        pic=question.settings.pic,
    )
    return PlanAnswer(
        plan=plan,
        helpers=tuple(
            HelperWork(
                worker=workers[share.helper.column],
                segment_indices=tuple(share.segment_indices),
                work=QueuedWork(step_tokens=share.num_tokens, attention_pairs=share.pairs),
                ready_at_s=now_s + share.finish_s,
            )
            for share in placement.shares
        ),
        candidates=tell_candidates(question, estimates, placement, columns),
        work=placement.work,
        runnable_at_s=now_s + placement.runnable_in_s,
        copied_at_s=now_s + placement.arrive_in_s,
        completion_at_s=now_s + placement.completion_s,
        computed_segments=_computed_segments(question, placement),
        copied_segments=copied,
        transfers=_transfers(question, placement),
    )


def _segment_plans(question: PlanQuestion, placement: Placement) -> tuple[SegmentPlan, ...]:
    if not question.settings.pic:
        return ()
    draft, workers = placement.draft, question.fleet.workers
    # A list, since a generator costs more than it saves here.
    plans = [
        SegmentPlan(
            start=segment.start,
            end=segment.end,
            segment_hash=segment.segment_hash,
            source=source,
            from_worker=None if source is Source.LOCAL or source is Source.COMPUTE else workers[column],
        )
        for segment, source, column in zip(question.layout.segments, draft.sources, draft.from_columns, strict=True)
    ]
    return tuple(plans)


def _estimate(question: PlanQuestion, placement: Placement) -> Estimate:
    return Estimate(
        free_in_s=float(question.load.free_in_s[placement.draft.column]),
        arrive_in_s=placement.arrive_in_s,
        compute_s=placement.engine_s,
        completion_s=placement.completion_s,
    )


def _computed_segments(question: PlanQuestion, placement: Placement) -> tuple[int, ...]:
    held = question.coverage.segment_states[:, placement.draft.column].tolist()
    segments = question.layout.segments
    return tuple(
        index
        for index, source in enumerate(placement.draft.sources)
        if source is Source.COMPUTE and held[index] == NOT_HELD and segments[index].start > 0
    )


def _transfers(question: PlanQuestion, placement: Placement) -> tuple[Transfer, ...]:
    tokens_from = dict(placement.draft.tokens_from)
    for share in placement.shares:
        tokens_from[share.helper.column] = tokens_from.get(share.helper.column, 0) + share.num_tokens
    return tuple(Transfer(question.fleet.workers[column], num_tokens) for column, num_tokens in tokens_from.items())
