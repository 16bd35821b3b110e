"""Decisions with round numbers, as the router publishes them and as `nebula events --json` writes them."""

from collections.abc import Sequence

from nebula_cli.event_json import format_json
from nebula_cli.event_record import decode_message
from nebula_protocol.codec import encode
from nebula_protocol.events import Candidate, Decision, Envelope, SplitNow
from nebula_protocol.ids import DomainId, RequestId, SegmentHash, WorkerId, WorkerWithDpRank
from nebula_protocol.plan import Estimate, Plan, SegmentPlan, Source
from nebula_protocol.subjects import Topic, event_subject

PROMPT_TOKENS = 1_484
NAMESPACE = "nebula"
# 2026-11-29 12:00:00.125 UTC
PUBLISHED_MS = 1_795_953_600_125


def worker(number: int) -> WorkerWithDpRank:
    """Its short name is `00000N`."""
    return WorkerWithDpRank(WorkerId(number))


def candidate(
    number: int,
    *,
    compute_ms: float,
    free_in_ms: float = 0.0,
    arrive_in_ms: float = 0.0,
    cost_ms: float | None = 0.0,
    prefix: int = 0,
    segments: int = 0,
    copied: int = 0,
) -> Candidate:
    """`cost_ms` is what others wait; None: the score is not told."""
    done_in_ms = max(free_in_ms, arrive_in_ms) + compute_ms
    return Candidate(
        worker=worker(number),
        estimate=Estimate(
            free_in_s=free_in_ms / 1e3,
            arrive_in_s=arrive_in_ms / 1e3,
            compute_s=compute_ms / 1e3,
            completion_s=done_in_ms / 1e3,
        ),
        prefix_hit_tokens=prefix,
        segment_hit_tokens=segments,
        copied_tokens=copied,
        score_s=None if cost_ms is None else (done_in_ms + cost_ms) / 1e3,
    )


def segment(start: int, end: int, source: Source, from_number: int | None = None) -> SegmentPlan:
    return SegmentPlan(
        start=start,
        end=end,
        segment_hash=SegmentHash(bytes([start % 251]) * 16),
        source=source,
        from_worker=None if from_number is None else worker(from_number),
    )


def decision(
    *candidates: Candidate,
    request_id: str = "request-1",
    segments: Sequence[SegmentPlan] = (),
    pic: bool = True,
    attempt: int = 1,
    num_workers: int = 7,
    is_bound: bool = False,
    split: SplitNow | None = None,
    unknown_segments: Sequence[int] = (),
) -> Decision:
    """The first candidate is the chosen one."""
    chosen = candidates[0]
    plan = Plan(
        request_id=RequestId(request_id),
        domain_id=DomainId("d"),
        target=chosen.worker,
        segments=tuple(segments),
        prefix_hit_tokens=chosen.prefix_hit_tokens,
        wait_budget_s=0.0,
        estimate=chosen.estimate,
        pic=pic,
    )
    return Decision(
        request_id=RequestId(request_id),
        plan=plan,
        prompt_tokens=PROMPT_TOKENS,
        candidates=candidates,
        decision_us=412.0,
        attempt=attempt,
        num_workers=num_workers,
        is_bound=is_bound,
        split=split,
        unknown_segments=tuple(unknown_segments),
    )


def message_of(topic: Topic, payload: object, *, component: str = "router") -> tuple[str, bytes]:
    """Subject and data on NATS."""
    envelope = Envelope(publisher_id=1, sequence=0, published_at=PUBLISHED_MS, topic=topic, payload=encode(payload))
    return event_subject(NAMESPACE, component, "generate", topic), encode(envelope)


def lines_of(*messages: tuple[str, bytes]) -> str:
    """As `nebula events --json` writes them."""
    return "".join(f"{format_json(record)}\n" for message in messages for record in decode_message(*message))
