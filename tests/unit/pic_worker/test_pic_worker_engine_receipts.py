"""Receipts of the vLLM engine, from the facts that its connector tells."""

import pytest
from msgspec import structs
from support.engine_world import DOMAIN, OTHER_PEER, OWN, PEER, join, passage, planned, span, unplanned

from nebula_protocol.ids import Origin, RequestId, WorkerEpoch
from nebula_protocol.plan import SegmentPlan, Source
from nebula_protocol.receipt import FallbackReason, Receipt
from pic_worker.adapters.vllm.engine_wire import PrefillFacts, SegmentFact
from pic_worker.adapters.vllm.receipts import ReceiptMaker
from pic_worker.core.engine_request import EngineRequest
from pic_worker.core.store_entry import SegmentKey
from pic_worker.segment_flight import Brought
from pic_worker.segment_intake import Intake

HEAD, FIRST, SECOND, TAIL = passage(0, 10), passage(1, 20), passage(2, 30), passage(3, 5)
TOKENS = join(HEAD, FIRST, SECOND, TAIL)
"""65: the first segment at 10, the second at 30, the tail at 60."""
MAKER = ReceiptMaker(OWN, WorkerEpoch(7), block_size_tokens=4)


def fact_of(plan: SegmentPlan, **changes: object) -> SegmentFact:
    fact = SegmentFact(segment_hash=plan.segment_hash, start=plan.start, end=plan.end)
    return structs.replace(fact, **changes)


def facts_of(request: EngineRequest, *segments: SegmentFact, device: int = 0, host: int = 0) -> PrefillFacts:
    return PrefillFacts(
        request_id=request.request_id,
        prompt_tokens=len(request.tokens),
        device_prefix_tokens=device,
        host_prefix_tokens=host,
        segments=segments,
        queued_s=0.5,
        computed_tokens=40,
        attention_pairs=900.0,
        num_steps=2,
        step_tokens=60,
        step_pairs=1000.0,
        step_s=0.25,
        is_whole=True,
    )


def receipt(request: EngineRequest, facts: PrefillFacts) -> Receipt:
    return MAKER.prompt_receipt(request, facts, total_s=2.0, last_event_ids={})


def plan_of(*sources: Source, expected_prefix_tokens: int = 0) -> EngineRequest:
    spans = [span(TOKENS, 10, 30, sources[0], OWN), span(TOKENS, 30, 60, sources[1], PEER)]
    return planned("r", TOKENS, spans, expected_prefix_tokens=expected_prefix_tokens)


def test_the_three_kinds_of_tokens_add_up_to_the_prompt() -> None:
    request = plan_of(Source.LOCAL, Source.COMPUTE)
    first, second = request.segments
    made = receipt(
        request,
        facts_of(
            request,
            fact_of(first, loaded_tokens=18, prefix_tokens=2, recomputed_tokens=3, origin=Origin.ALONE),
            fact_of(second, is_stored=True),
            device=8,
            host=4,
        ),
    )
    # 12 of the prefix (8 + 4), 18 loaded behind it: 65 - 12 - 18 = 35.
    assert (made.prefix_hit_tokens, made.segment_hit_tokens, made.computed_tokens) == (12, 18, 35)
    assert (made.local_hit_tokens, made.fetched_hit_tokens, made.recomputed_tokens) == (18, 0, 3)
    assert made.invalid_hit_tokens == 0
    assert [outcome.done for outcome in made.segments] == [Source.LOCAL, Source.COMPUTE]
    assert [outcome.origin for outcome in made.segments] == [Origin.ALONE, None]
    assert [outcome.fallback for outcome in made.segments] == [None, None]
    assert [outcome.stored for outcome in made.segments] == [False, True]


def test_times_add_up_and_the_queue_is_no_longer_than_the_whole() -> None:
    request = plan_of(Source.COMPUTE, Source.COMPUTE)
    made = receipt(request, facts_of(request, *map(fact_of, request.segments)))
    assert (made.timing.queue_s, made.timing.compute_s, made.timing.total_s) == (0.5, 1.5, 2.0)
    late = structs.replace(facts_of(request, *map(fact_of, request.segments)), queued_s=9.0)
    assert receipt(request, late).timing.compute_s == 0.0


@pytest.mark.parametrize(
    ("source", "changes", "reason"),
    [
        (Source.LOCAL, {"was_absent": True}, FallbackReason.NOT_THERE),
        (Source.LOCAL, {"tokens_differed": True}, FallbackReason.TOKENS_DIFFER),
        (Source.LOCAL, {}, FallbackReason.VETO),
        (Source.JOIN, {"was_absent": True}, FallbackReason.NOT_THERE),
    ],
)
def test_a_segment_that_was_not_loaded_says_why(
    source: Source, changes: dict[str, object], reason: FallbackReason
) -> None:
    request = plan_of(source, Source.COMPUTE)
    first, second = request.segments
    made = receipt(request, facts_of(request, fact_of(first, **changes), fact_of(second)))
    assert made.segments[0].fallback is reason
    # A veto is the worker's choice, what it had to compute for want of KV was a wrong expectation.
    assert made.invalid_hit_tokens == (0 if reason is FallbackReason.VETO else 20)


@pytest.mark.parametrize("source", [Source.FETCH, Source.COMPUTE_AT])
def test_what_another_worker_has_is_computed_here(source: Source) -> None:
    request = planned("r", TOKENS, [span(TOKENS, 30, 60, source, OTHER_PEER)])
    made = receipt(request, facts_of(request, fact_of(request.segments[0], was_absent=True)))
    assert (made.segments[0].done, made.segments[0].fallback) == (Source.COMPUTE, FallbackReason.SOURCE_GONE)


def test_a_plan_for_another_domain_is_no_invalid_hit() -> None:
    request = planned("r", TOKENS, [span(TOKENS, 10, 30, Source.LOCAL, OWN)], domain_id=type(DOMAIN)("other"))
    made = receipt(request, facts_of(request, fact_of(request.segments[0], was_absent=True)))
    assert made.segments[0].fallback is FallbackReason.DOMAIN_DIFFERS
    assert made.invalid_hit_tokens == 0


def test_a_segment_inside_the_prefix_counts_as_there() -> None:
    request = plan_of(Source.LOCAL, Source.COMPUTE)
    first, second = request.segments
    made = receipt(request, facts_of(request, fact_of(first, prefix_tokens=20), fact_of(second), device=32))
    assert (made.segments[0].done, made.segments[0].fallback) == (Source.LOCAL, None)
    assert (made.segments[0].prefix_tokens, made.segment_hit_tokens) == (20, 0)


def test_a_prefix_that_was_shorter_than_expected_is_an_invalid_hit_but_for_what_segments_made_up() -> None:
    request = plan_of(Source.LOCAL, Source.COMPUTE, expected_prefix_tokens=40)
    first, second = request.segments
    made = receipt(request, facts_of(request, fact_of(first, loaded_tokens=20), fact_of(second), device=4))
    # Expected [0, 40), there [0, 4) and the segment's [10, 30): missing [4, 10) and [30, 40).
    assert made.invalid_hit_tokens == 6 + 10


def test_without_a_plan_the_worker_meant_to_do_what_it_did() -> None:
    request = unplanned("r", TOKENS, [(10, 30), (30, 60)])
    first, second = request.segments
    made = receipt(request, facts_of(request, fact_of(first, loaded_tokens=20), fact_of(second, was_absent=True)))
    assert [(outcome.planned, outcome.done) for outcome in made.segments] == [
        (Source.LOCAL, Source.LOCAL),
        (Source.COMPUTE, Source.COMPUTE),
    ]
    assert made.segments[1].fallback is None
    assert made.invalid_hit_tokens == 0


def test_the_work_and_the_names_are_those_of_the_facts() -> None:
    request = plan_of(Source.COMPUTE, Source.COMPUTE)
    made = receipt(request, facts_of(request, *map(fact_of, request.segments)))
    assert (made.request_id, made.worker, made.epoch) == (RequestId("r"), OWN, 7)
    assert (made.work.computed_tokens, made.work.num_steps, made.work.step_s) == (40, 2, 0.25)


def test_what_was_brought_counts_as_fetched_and_its_wait_is_no_queue() -> None:
    request = plan_of(Source.LOCAL, Source.FETCH)
    first, second = request.segments
    intake = Intake({SegmentKey(request.domain_id, second.segment_hash): Brought(Source.FETCH, Origin.ALONE)}, 0.25)
    facts = facts_of(
        request,
        fact_of(first, loaded_tokens=20, origin=Origin.IN_CONTEXT),
        fact_of(second, loaded_tokens=30, origin=Origin.ALONE),
    )
    made = MAKER.prompt_receipt(request, facts, total_s=2.0, last_event_ids={}, intake=intake)
    assert (made.segment_hit_tokens, made.local_hit_tokens, made.fetched_hit_tokens) == (50, 20, 30)
    assert [outcome.done for outcome in made.segments] == [Source.LOCAL, Source.FETCH]
    # 2.0 = 0.5 of queue + 0.25 of waiting + 1.25.
    assert (made.timing.queue_s, made.timing.wait_s, made.timing.compute_s) == (0.5, 0.25, 1.25)


def test_what_did_not_come_says_why() -> None:
    request = plan_of(Source.LOCAL, Source.FETCH)
    first, second = request.segments
    key = SegmentKey(request.domain_id, second.segment_hash)
    facts = facts_of(request, fact_of(first, loaded_tokens=20), fact_of(second, was_absent=True))
    for reason, invalid_tokens in ((FallbackReason.LATE, 0), (FallbackReason.SOURCE_GONE, 30)):
        made = MAKER.prompt_receipt(request, facts, total_s=2.0, last_event_ids={}, intake=Intake({key: reason}))
        assert (made.segments[1].done, made.segments[1].fallback) == (Source.COMPUTE, reason)
        assert (made.fetched_hit_tokens, made.invalid_hit_tokens) == (0, invalid_tokens)
