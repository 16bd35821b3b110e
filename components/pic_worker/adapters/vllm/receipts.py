"""The receipt of a prefill, from what the engine tells of it."""

from dataclasses import dataclass

from nebula_protocol.ids import EventId, WorkerEpoch, WorkerWithDpRank
from nebula_protocol.plan import SegmentPlan, Source
from nebula_protocol.receipt import FallbackReason, Receipt, SegmentOutcome, StepWork, Timing
from nebula_protocol.subjects import Topic
from pic_worker.adapters.vllm.engine_wire import PrefillFacts, SegmentFact
from pic_worker.core.compute_work import Run, runs_between
from pic_worker.core.engine_request import EngineRequest
from pic_worker.core.store_entry import SegmentKey
from pic_worker.segment_flight import Brought, SegmentResult
from pic_worker.segment_intake import NO_INTAKE, Intake

_PLANNED_HITS = frozenset((Source.LOCAL, Source.FETCH, Source.JOIN))
_INVALID = frozenset((FallbackReason.NOT_THERE, FallbackReason.TOKENS_DIFFER, FallbackReason.SOURCE_GONE))


@dataclass(frozen=True, slots=True)
class ReceiptMaker:
    worker: WorkerWithDpRank
    epoch: WorkerEpoch
    block_size_tokens: int

    def prompt_receipt(
        self,
        request: EngineRequest,
        facts: PrefillFacts,
        *,
        total_s: float,
        last_event_ids: dict[Topic, EventId],
        intake: Intake = NO_INTAKE,
    ) -> Receipt:
        """What was really done for a prompt.

        Args:
            total_s: From when this process had the request until it had the first token.
            intake: What came from elsewhere before.
        """
        outcomes = tuple(
            self._outcome(request, plan, fact, intake.results.get(SegmentKey(request.domain_id, plan.segment_hash)))
            for plan, fact in zip(request.segments, facts.segments, strict=True)
        )
        prefix_tokens = facts.device_prefix_tokens + facts.host_prefix_tokens
        hit_tokens = sum(fact.loaded_tokens for fact in facts.segments)
        fetched_tokens = sum(
            fact.loaded_tokens
            for plan, outcome, fact in zip(request.segments, outcomes, facts.segments, strict=True)
            if outcome.done is not Source.LOCAL and plan.from_worker != self.worker
        )
        return Receipt(
            request_id=request.request_id,
            worker=self.worker,
            epoch=self.epoch,
            prompt_tokens=facts.prompt_tokens,
            prefix_hit_tokens=prefix_tokens,
            segment_hit_tokens=hit_tokens,
            local_hit_tokens=hit_tokens - fetched_tokens,
            fetched_hit_tokens=fetched_tokens,
            recomputed_tokens=sum(fact.recomputed_tokens for fact in facts.segments),
            computed_tokens=facts.prompt_tokens - prefix_tokens - hit_tokens,
            invalid_hit_tokens=self._invalid_hit_tokens(request, facts, outcomes, prefix_tokens),
            segments=outcomes,
            timing=_timing(facts, total_s, intake.wait_s),
            work=StepWork(
                computed_tokens=facts.computed_tokens,
                attention_pairs=facts.attention_pairs,
                num_steps=facts.num_steps,
                step_tokens=facts.step_tokens,
                step_pairs=facts.step_pairs,
                step_s=facts.step_s,
            ),
            last_event_ids=last_event_ids,
        )

    def _invalid_hit_tokens(
        self,
        request: EngineRequest,
        facts: PrefillFacts,
        outcomes: tuple[SegmentOutcome, ...],
        prefix_tokens: int,
    ) -> int:
        """Tokens planned as a hit that were not there: of the expected prefix, and of segments behind it."""
        usable = (facts.prompt_tokens - 1) // self.block_size_tokens * self.block_size_tokens
        expected = min(request.expected_prefix_tokens, usable)
        invalid = 0
        if expected > prefix_tokens:
            # What segments made up for was a hit after all.
            loaded = [_loaded(fact, prefix_tokens, expected) for fact in facts.segments if fact.loaded_tokens]
            missing = runs_between(prefix_tokens, expected, [run for run in loaded if run.start < run.end])
            invalid = sum(run.end - run.start for run in missing)
        behind = max(expected, prefix_tokens)
        for outcome in outcomes:
            if outcome.fallback in _INVALID and outcome.planned in _PLANNED_HITS:
                invalid += max(0, outcome.end - max(outcome.start, behind))
        return invalid

    def _outcome(
        self, request: EngineRequest, plan: SegmentPlan, fact: SegmentFact, result: SegmentResult | None
    ) -> SegmentOutcome:
        is_there = fact.loaded_tokens > 0 or fact.prefix_tokens >= plan.end - plan.start
        done = Source.LOCAL if is_there else Source.COMPUTE
        if fact.loaded_tokens and isinstance(result, Brought):
            done = result.done
        return SegmentOutcome(
            start=plan.start,
            end=plan.end,
            segment_hash=plan.segment_hash,
            # A worker's own cut has no plan: it meant to do what it did.
            planned=plan.source if request.has_plan else done,
            done=done,
            prefix_tokens=fact.prefix_tokens,
            recomputed_tokens=fact.recomputed_tokens,
            fallback=None if is_there or not request.has_plan else self._fallback(request, plan, fact, result),
            origin=fact.origin if fact.loaded_tokens else None,
            stored=fact.is_stored,
        )

    def _fallback(
        self, request: EngineRequest, plan: SegmentPlan, fact: SegmentFact, result: SegmentResult | None
    ) -> FallbackReason | None:
        if plan.source is Source.COMPUTE:
            return None
        if request.domain_differs:
            return FallbackReason.DOMAIN_DIFFERS
        if isinstance(result, FallbackReason):
            return result
        if fact.tokens_differed:
            return FallbackReason.TOKENS_DIFFER
        if not fact.was_absent:
            return FallbackReason.VETO
        # Where nothing came of it, nothing can be brought from other workers.
        return FallbackReason.NOT_THERE if plan.from_worker in (None, self.worker) else FallbackReason.SOURCE_GONE


def _loaded(fact: SegmentFact, start: int, end: int) -> Run:
    first = fact.start + fact.prefix_tokens
    return Run(max(first, start), min(first + fact.loaded_tokens, end))


def _timing(facts: PrefillFacts, total_s: float, wait_s: float) -> Timing:
    queue_s = min(facts.queued_s, total_s - wait_s)
    return Timing(queue_s=queue_s, wait_s=wait_s, compute_s=total_s - wait_s - queue_s, total_s=total_s)
