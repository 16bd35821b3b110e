"""What counts as computed again, judged from what there really was."""

import pytest

from nebula_bench.cluster.repeated import ComputedAgain, PrefilledRequest, judge_repeated
from nebula_bench.cluster.worker_log import WorkerLog
from nebula_protocol.events import PicEvent, SegmentStored
from nebula_protocol.ids import (
    DomainId,
    EventId,
    Origin,
    RequestId,
    SegmentHash,
    WorkerEpoch,
    WorkerId,
    WorkerWithDpRank,
)
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason, Receipt, SegmentOutcome, StepWork, Timing

A = SegmentHash(b"a")
TOKENS = 100


def request(
    at_s: float,
    done_s: float,
    *,
    start: int = 500,
    planned: Source = Source.COMPUTE,
    done: Source = Source.COMPUTE,
    prefix_tokens: int = 0,
    known: bool = False,
) -> PrefilledRequest:
    """One request with segment A."""
    segment = SegmentOutcome(
        start=start,
        end=start + TOKENS,
        segment_hash=A,
        planned=planned,
        done=done,
        fallback=None if planned is done else FallbackReason.NOT_THERE,
        stored=True,
        prefix_tokens=prefix_tokens,
    )
    receipt = Receipt(
        request_id=RequestId("r"),
        worker=WorkerWithDpRank(WorkerId(1)),
        epoch=WorkerEpoch(1),
        prompt_tokens=start + TOKENS,
        prefix_hit_tokens=0,
        segment_hit_tokens=0,
        local_hit_tokens=0,
        fetched_hit_tokens=0,
        recomputed_tokens=0,
        computed_tokens=start + TOKENS,
        invalid_hit_tokens=0,
        segments=(segment,),
        timing=Timing(queue_s=0.0, wait_s=0.0, compute_s=0.0, total_s=0.0),
        work=StepWork(computed_tokens=0, attention_pairs=0.0, num_steps=0, step_tokens=0, step_pairs=0.0, step_s=0.0),
        last_event_ids={},
    )
    return PrefilledRequest(at_s, done_s, receipt, frozenset({A}) if known else frozenset())


def stored_at(*moments_s: float) -> WorkerLog:
    log = WorkerLog()
    stored = SegmentStored(segment_hash=A, domain_id=DomainId("d"), num_tokens=TOKENS, origin=Origin.ALONE)
    for worker, at_s in enumerate(moments_s, start=1):
        log.record_events(WorkerId(worker), [PicEvent(event_id=EventId(0), data=stored)], at_s)
    return log


def judge(log: WorkerLog, *requests: PrefilledRequest) -> ComputedAgain:
    return judge_repeated(log, requests, requests)


@pytest.mark.parametrize(
    ("known", "expected"), [(False, ComputedAgain(unknowingly=90)), (True, ComputedAgain(on_purpose=90))]
)
def test_what_was_stored_is_computed_again_unknowingly_or_on_purpose(known: bool, expected: ComputedAgain) -> None:
    # Of the segment's 100 tokens a prefix hit covered 10.
    assert judge(stored_at(1.0), request(2.0, 3.0, prefix_tokens=10, known=known)) == expected


def test_what_is_stored_later_was_not_there() -> None:
    assert judge(stored_at(2.5), request(2.0, 3.0)) == ComputedAgain()


def test_what_another_request_is_computing_is_a_copy_on_its_way() -> None:
    first, second, third = request(1.0, 2.0), request(1.5, 2.5), request(3.0, 4.0)
    assert judge(WorkerLog(), first, second) == ComputedAgain(unknowingly=TOKENS)
    assert judge(WorkerLog(), first, third) == ComputedAgain()


def test_a_segment_at_the_beginning_is_no_copy_for_others() -> None:
    assert judge(WorkerLog(), request(1.0, 2.0, start=0), request(1.5, 2.5)) == ComputedAgain()


def test_what_was_planned_as_a_hit_and_computed_is_a_fallback_whatever_there_was() -> None:
    found = judge(stored_at(1.0), request(2.0, 3.0, planned=Source.FETCH))
    assert found == ComputedAgain(as_fallback=TOKENS)


def test_what_was_loaded_is_not_computed() -> None:
    assert judge(stored_at(1.0), request(2.0, 3.0, planned=Source.LOCAL, done=Source.LOCAL)) == ComputedAgain()


def test_requests_that_do_not_count_still_made_copies() -> None:
    first, second = request(1.0, 2.0), request(1.5, 2.5)
    assert judge_repeated(WorkerLog(), (first, second), (first,)) == ComputedAgain()
    assert judge_repeated(WorkerLog(), (first, second), (second,)) == ComputedAgain(unknowingly=TOKENS)
