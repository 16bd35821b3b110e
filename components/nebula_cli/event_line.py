"""An event as one line for people."""

from collections import Counter
from datetime import datetime
from typing import assert_never

from rich.text import Text

from nebula_cli.event_record import EventRecord
from nebula_cli.split_words import describe_review
from nebula_cli.worker_name import WorkerNames
from nebula_protocol.events import (
    Decision,
    HostBlocksRemoved,
    HostBlocksStored,
    KvEvent,
    PicEvent,
    PicEventData,
    SegmentRemoved,
    SegmentStored,
    SplitReview,
    StoreCleared,
)
from nebula_protocol.plan import Source
from nebula_protocol.subjects import Topic

_TOPIC_STYLES = {Topic.KV_EVENTS: "cyan", Topic.PIC_EVENTS: "magenta", Topic.DECISIONS: "green", Topic.SPLITS: "yellow"}
_TOPIC_WIDTH = max(map(len, Topic))
_NAME_WIDTH = len("prefill/123456")
_HASH_DIGITS = 8
_DEVICE_TIER = "device"


def format_line(record: EventRecord, names: WorkerNames) -> Text:
    """Time of day, topic, worker, what happened; `#` and the event's id where it has one."""
    time_of_day = datetime.fromtimestamp(record.published_at_ms / 1e3).strftime("%H:%M:%S.%f")[:-3]
    return Text.assemble(
        (time_of_day, "dim"),
        "  ",
        (f"{record.topic:<{_TOPIC_WIDTH}}", _TOPIC_STYLES[record.topic]),
        "  ",
        (f"{_name(record, names):<{_NAME_WIDTH}}", "bold"),
        "  ",
        *_what(record, names),
    )


def _name(record: EventRecord, names: WorkerNames) -> str:
    return record.component if record.worker is None else names.name(record.worker)


def _what(record: EventRecord, names: WorkerNames) -> tuple[str | tuple[str, str], ...]:
    match record.body:
        case KvEvent() as event:
            tier = "" if record.tier == _DEVICE_TIER else f" ({record.tier})"
            return (f"{_kv_event(event)}{tier}", (f"  #{event.event_id}", "dim"))
        case PicEvent() as event:
            return (_pic_event(event.data), (f"  #{event.event_id}", "dim"))
        case Decision() as decision:
            return (_decision(decision, names),)
        case SplitReview() as review:
            return (describe_review(review),)
        case _:
            assert_never(record.body)


def _kv_event(event: KvEvent) -> str:
    if event.data == "cleared":
        return "cleared"
    if event.data.stored is not None:
        parent = event.data.stored.parent_hash
        where = "at the start" if parent is None else f"after {_block_name(parent)}"
        return f"stored {_blocks(len(event.data.stored.blocks))} {where}"
    if event.data.removed is not None:
        return f"removed {_blocks(len(event.data.removed.block_hashes))}"
    return "nothing"


def _pic_event(data: PicEventData) -> str:
    match data:
        case SegmentStored():
            return f"segment_stored {_segment_name(data.segment_hash)} {data.num_tokens} tokens {data.origin}"
        case SegmentRemoved():
            return f"segment_removed {_segment_name(data.segment_hash)} {data.reason}"
        case HostBlocksStored():
            return f"host_blocks_stored {_blocks(len(data.block_hashes))}"
        case HostBlocksRemoved():
            return f"host_blocks_removed {_blocks(len(data.block_hashes))} {data.reason}"
        case StoreCleared():
            return "store_cleared"
        case _:
            assert_never(data)


def _decision(decision: Decision, names: WorkerNames) -> str:
    plan, estimate = decision.plan, decision.plan.estimate
    parts = [
        f"request {decision.request_id}: {decision.prompt_tokens} tokens",
        f"est {_ms(estimate.completion_s)} ms (free in {_ms(estimate.free_in_s)}, "
        f"arrive in {_ms(estimate.arrive_in_s)}, compute {_ms(estimate.compute_s)})",
        f"prefix {plan.prefix_hit_tokens} tokens",
        _sources(decision, names),
        f"{_counted(len(decision.candidates), 'candidate')} in {decision.decision_us:.0f} us",
    ]
    if not plan.pic:
        parts.append("exact")
    if decision.attempt > 1:
        parts.append(f"attempt {decision.attempt}")
    return "; ".join(parts)


def _sources(decision: Decision, names: WorkerNames) -> str:
    """`segments: local 3, fetch 1 (prefill/3f2a91), compute 2`."""
    segments = decision.plan.segments
    if not segments:
        return "no segments"
    counts = Counter(segment.source for segment in segments)
    parts = []
    for source in (source for source in Source if counts[source]):
        others = {segment.from_worker for segment in segments if segment.source is source} - {None}
        listed = ", ".join(sorted(names.name(other) for other in others if other is not None))
        parts.append(f"{source} {counts[source]}" + (f" ({listed})" if listed else ""))
    return f"segments: {', '.join(parts)}"


def _blocks(count: int) -> str:
    return _counted(count, "block")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _segment_name(segment_hash: bytes) -> str:
    return f"{segment_hash.hex()[:_HASH_DIGITS]}…"


def _block_name(block_hash: int) -> str:
    return f"{block_hash:016x}"[:_HASH_DIGITS] + "…"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f}"
