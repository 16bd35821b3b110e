"""Events: decoded, filtered, and written as lines and as JSON."""

import msgspec
import pytest

from nebula_cli.event_filter import EventFilter
from nebula_cli.event_json import format_json
from nebula_cli.event_line import format_line
from nebula_cli.event_record import EventRecord, decode_message
from nebula_cli.worker_name import WorkerNames
from nebula_protocol.codec import encode
from nebula_protocol.errors import DecodeError
from nebula_protocol.events import (
    Candidate,
    Decision,
    Envelope,
    HostBlocksRemoved,
    HostBlocksStored,
    PicEvent,
    PicEventData,
    SegmentRemoved,
    SegmentStored,
    SplitReview,
    SplitVerdict,
    StoreCleared,
    WorkerPicEvents,
)
from nebula_protocol.ids import (
    DomainId,
    DpRank,
    EngineBlockHash,
    EventId,
    Origin,
    RemovalReason,
    RequestId,
    SegmentHash,
    WorkerEpoch,
    WorkerId,
    WorkerWithDpRank,
)
from nebula_protocol.plan import Estimate, Plan, SegmentPlan, Source
from nebula_protocol.subjects import Topic, event_subject

PREFILL = WorkerId(0x1E9B579EE39D8707)
OTHER = WorkerId(0x2222222222ABCDEF)
SEGMENT = SegmentHash(bytes.fromhex("3f2a91c0" + "11" * 12))
DOMAIN = DomainId("d")
# 2026-11-29 12:00:00.125 UTC
PUBLISHED_MS = 1_795_953_600_125


def wrap(topic: Topic, payload: object, component: str = "prefill") -> tuple[str, bytes]:
    envelope = Envelope(
        publisher_id=5, sequence=3, published_at=PUBLISHED_MS, topic=topic, payload=msgspec.msgpack.encode(payload)
    )
    return event_subject("nebula_pool", component, "generate", topic), encode(envelope)


def kv_message(*data: object, tier: str = "device") -> tuple[str, bytes]:
    """In the shape in which Dynamo's own publisher writes it."""
    events = [
        {"worker_id": PREFILL, "storage_tier": tier, "event": {"event_id": at, "data": one, "dp_rank": 0}}
        for at, one in enumerate(data, start=1)
    ]
    return wrap(Topic.KV_EVENTS, events)


def stored(parent: int | None, num_blocks: int) -> dict[str, object]:
    blocks = [{"block_hash": at, "tokens_hash": at, "mm_extra_info": None} for at in range(num_blocks)]
    return {"stored": {"parent_hash": parent, "start_position": None, "blocks": blocks}}


def pic_message(*data: PicEventData) -> tuple[str, bytes]:
    events = tuple(PicEvent(event_id=EventId(at), data=one) for at, one in enumerate(data))
    return wrap(Topic.PIC_EVENTS, WorkerPicEvents(worker_id=PREFILL, epoch=WorkerEpoch(9), events=events))


def segment_plan(source: Source, from_worker: WorkerId | None = None) -> SegmentPlan:
    other = None if from_worker is None else WorkerWithDpRank(from_worker)
    return SegmentPlan(start=0, end=334, segment_hash=SEGMENT, source=source, from_worker=other)


def decision_message(attempt: int = 1, pic: bool = True) -> tuple[str, bytes]:
    estimate = Estimate(free_in_s=0.02, arrive_in_s=0.0, compute_s=0.103, completion_s=0.123)
    target = WorkerWithDpRank(PREFILL)
    plan = Plan(
        request_id=RequestId("req-42"),
        domain_id=DOMAIN,
        target=target,
        segments=(
            segment_plan(Source.COMPUTE),
            segment_plan(Source.LOCAL),
            segment_plan(Source.LOCAL),
            segment_plan(Source.FETCH, OTHER),
        ),
        prefix_hit_tokens=512,
        wait_budget_s=0.1,
        estimate=estimate,
        pic=pic,
    )
    candidate = Candidate(worker=target, estimate=estimate, prefix_hit_tokens=512, segment_hit_tokens=668)
    decision = Decision(
        request_id=RequestId("req-42"),
        plan=plan,
        prompt_tokens=2934,
        candidates=(candidate,),
        decision_us=180.4,
        attempt=attempt,
    )
    return wrap(Topic.DECISIONS, decision, component="router")


def one_record(message: tuple[str, bytes]) -> EventRecord:
    (record,) = decode_message(*message)
    return record


def what(message: tuple[str, bytes], names: WorkerNames | None = None) -> str:
    """The line behind time, topic and worker."""
    line = format_line(one_record(message), names or WorkerNames()).plain
    return line.split("  ", 3)[3].strip()


def test_a_message_is_one_record_for_each_event_in_it() -> None:
    records = decode_message(*kv_message(stored(None, 2), {"removed": {"block_hashes": [1]}}, "cleared"))
    assert [record.worker for record in records] == [WorkerWithDpRank(PREFILL, DpRank(0))] * 3
    assert [(record.namespace, record.component, record.sequence) for record in records] == [
        ("nebula_pool", "prefill", 3)
    ] * 3


@pytest.mark.parametrize(
    ("subject", "data"),
    [
        ("namespace.n.component.c.endpoint.e.kv_metrics", b""),
        ("namespace.n.component.c.endpoint.e.kv-events", b"\xc1"),
        wrap(Topic.PIC_EVENTS, {"worker_id": 1}),
        wrap(Topic.KV_EVENTS, "cleared"),
    ],
    ids=["another topic", "no envelope", "no pic events", "no array"],
)
def test_a_message_of_something_else_is_told(subject: str, data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_message(subject, data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (stored(None, 1), "stored 1 block at the start  #1"),
        (stored(0x8A3F00000000000C, 12), "stored 12 blocks after 8a3f0000…  #1"),
        ({"removed": {"block_hashes": [1, 2, 3]}}, "removed 3 blocks  #1"),
        ("cleared", "cleared  #1"),
    ],
)
def test_a_line_says_what_happened_to_blocks(data: object, expected: str) -> None:
    assert what(kv_message(data)) == expected


def test_a_tier_below_the_device_is_named() -> None:
    assert what(kv_message("cleared", tier="host_pinned")) == "cleared (host_pinned)  #1"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            SegmentStored(segment_hash=SEGMENT, domain_id=DOMAIN, num_tokens=334, origin=Origin.IN_CONTEXT),
            "segment_stored 3f2a91c0… 334 tokens in_context  #0",
        ),
        (
            SegmentRemoved(segment_hash=SEGMENT, domain_id=DOMAIN, reason=RemovalReason.CAPACITY),
            "segment_removed 3f2a91c0… capacity  #0",
        ),
        (HostBlocksStored(block_hashes=(EngineBlockHash(1),)), "host_blocks_stored 1 block  #0"),
        (
            HostBlocksRemoved(block_hashes=(EngineBlockHash(1), EngineBlockHash(2)), reason=RemovalReason.DROPPED),
            "host_blocks_removed 2 blocks dropped  #0",
        ),
        (StoreCleared(), "store_cleared  #0"),
    ],
)
def test_a_line_says_what_happened_to_segments(data: PicEventData, expected: str) -> None:
    assert what(pic_message(data)) == expected


def test_a_line_says_why_a_request_went_where_it_went() -> None:
    names = WorkerNames()
    names.learn(OTHER, "prefill")
    assert what(decision_message(), names) == (
        "request req-42: 2934 tokens; est 123.0 ms (free in 20.0, arrive in 0.0, compute 103.0); prefix 512 tokens; "
        "segments: local 2, fetch 1 (prefill/abcdef), compute 1; 1 candidate in 180 us"
    )
    assert what(decision_message(attempt=2, pic=False)).endswith("; exact; attempt 2")


def test_a_line_begins_with_time_topic_and_worker() -> None:
    names = WorkerNames()
    names.learn(PREFILL, "prefill")
    line = format_line(one_record(kv_message("cleared")), names).plain
    time_of_day, topic, worker, *_ = line.split()
    assert time_of_day.endswith(":00:00.125")
    assert (topic, worker) == ("kv-events", "prefill/9d8707")


def test_json_is_one_object_a_line_with_hashes_as_hexadecimal_text() -> None:
    data = SegmentStored(segment_hash=SEGMENT, domain_id=DOMAIN, num_tokens=334, origin=Origin.ALONE)
    text = format_json(one_record(pic_message(data)))
    assert "\n" not in text
    assert msgspec.json.decode(text) == {
        "time": "2026-11-29T12:00:00.125+00:00",
        "topic": "pic-events",
        "namespace": "nebula_pool",
        "component": "prefill",
        "publisher_id": 5,
        "sequence": 3,
        "worker_id": PREFILL,
        "dp_rank": 0,
        "epoch": 9,
        "tier": "host",
        "event": {
            "event_id": 0,
            "dp_rank": 0,
            "data": {
                "type": "segment_stored",
                "segment_hash": SEGMENT.hex(),
                "domain_id": "d",
                "num_tokens": 334,
                "origin": "alone",
            },
        },
    }


def test_a_decision_as_json_keeps_the_whole_plan() -> None:
    decoded = msgspec.json.decode(format_json(one_record(decision_message())))
    assert decoded["decision"]["plan"]["segments"][3]["source"] == "fetch"
    assert decoded["decision"]["plan"]["segments"][3]["segment_hash"] == SEGMENT.hex()


def review_message(verdict: SplitVerdict = SplitVerdict.MOVED, before: float = 0.3) -> tuple[str, bytes]:
    review = SplitReview(
        verdict=verdict,
        from_prefix_ratio=before,
        prefix_ratio=0.2,
        best_from_ratio=0.0,
        best_to_ratio=0.125,
        gain_ratio=0.042,
        error_ratio=0.011,
        window_requests=32,
        num_requests=64,
        ghost_prefix_tokens=128,
        ghost_segment_tokens=4_096,
    )
    return wrap(Topic.SPLITS, review, component="router")


GHOSTS = "ghost hits in 32 requests: prefix 128, segment 4,096 tokens"
BETTER = "with 0.0 % to 12.5 % for prefix blocks reuse would save 4.2 % of prefill time more"


def said_of_split(verdict: SplitVerdict, before: float) -> str:
    """Behind the publisher's name, since no worker has the event to itself."""
    name, _, text = what(review_message(verdict, before)).partition(" ")
    assert name == "router"
    return text.strip()


def test_a_look_at_the_split_says_whether_it_moved_and_why() -> None:
    assert said_of_split(SplitVerdict.MOVED, 0.3) == f"moved from 30.0 % to 20.0 %: {BETTER}; {GHOSTS}"
    as_good = "moved from 10.0 % to 20.0 %: as good, and further from where less is saved"
    assert said_of_split(SplitVerdict.MOVED, 0.1) == f"{as_good}; {GHOSTS}"
    stays = "stays at 20.0 %: no other split would save more"
    assert said_of_split(SplitVerdict.BEST_ALREADY, 0.2) == f"{stays}; {GHOSTS}"
    unsure = f"stays at 20.0 %: {BETTER}, too little or chance (standard error 1.1 %)"
    assert said_of_split(SplitVerdict.NOT_SURE, 0.2) == f"{unsure}; {GHOSTS}"


def test_a_look_at_the_split_is_about_no_worker() -> None:
    record = one_record(review_message())
    assert not EventFilter(worker="9d8707").lets_pass(record)
    decoded = msgspec.json.decode(format_json(record))
    assert decoded["review"]["ghost_segment_tokens"] == 4_096
    assert "worker_id" not in decoded


def test_a_filter_lets_only_what_was_asked_for_pass() -> None:
    kv, decision = one_record(kv_message("cleared")), one_record(decision_message())
    both = [kv, decision]
    assert list(filter(EventFilter().lets_pass, both)) == both
    assert list(filter(EventFilter(topics=frozenset({Topic.KV_EVENTS})).lets_pass, both)) == [kv]
    assert list(filter(EventFilter(worker="9d8707").lets_pass, both)) == both
    assert list(filter(EventFilter(request="req-4").lets_pass, both)) == [decision]
    assert list(filter(EventFilter(request="chatcmpl-req-42").lets_pass, both)) == [decision]
    assert list(filter(EventFilter(request="eq-42").lets_pass, both)) == []
    assert list(filter(EventFilter(namespaces=frozenset({"other"})).lets_pass, both)) == []


def test_a_decision_is_also_about_the_workers_that_segments_come_from() -> None:
    decision = one_record(decision_message())
    assert EventFilter(worker="abcdef").lets_pass(decision)
    assert not EventFilter(worker="fedcba").lets_pass(decision)


def test_a_request_is_named_by_decisions_alone_so_nothing_else_is_subscribed_to() -> None:
    assert EventFilter(request="r").wanted_topics() == {Topic.DECISIONS}
    assert not EventFilter(request="r", topics=frozenset({Topic.KV_EVENTS})).wanted_topics()
    assert EventFilter().wanted_topics() == set(Topic)
