"""An event as one JSON object for programs, and back."""

from datetime import UTC, datetime

import msgspec

from nebula_cli.event_record import EventBody, EventRecord
from nebula_protocol.errors import DecodeError
from nebula_protocol.events import Decision, KvEvent, PicEvent, SplitReview
from nebula_protocol.ids import DpRank, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.subjects import Topic

_HASH_KEY = "segment_hash"
_BODY_TYPES: dict[Topic, type[EventBody]] = {
    Topic.KV_EVENTS: KvEvent,
    Topic.PIC_EVENTS: PicEvent,
    Topic.DECISIONS: Decision,
    Topic.SPLITS: SplitReview,
}
_BODY_KEYS = {Topic.DECISIONS: "decision", Topic.SPLITS: "review"}


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    """What every line has, beside its body."""

    time: datetime
    topic: Topic
    namespace: str
    component: str
    publisher_id: int
    sequence: int
    worker_id: WorkerId | None = None
    dp_rank: DpRank = DpRank(0)
    epoch: WorkerEpoch | None = None
    tier: str | None = None


def json_fields(record: EventRecord) -> dict[str, object]:
    """Hashes of segments are hexadecimal text; ids are plain integers of up to 64 bits."""
    fields: dict[str, object] = {
        "time": _iso_time(record.published_at_ms),
        "topic": record.topic,
        "namespace": record.namespace,
        "component": record.component,
        "publisher_id": record.publisher_id,
        "sequence": record.sequence,
    }
    if record.worker is not None:
        fields |= {"worker_id": record.worker.worker_id, "dp_rank": record.worker.dp_rank}
    if record.epoch is not None:
        fields["epoch"] = record.epoch
    if record.tier is not None:
        fields["tier"] = record.tier
    fields[_body_key(record.topic)] = _plain(msgspec.to_builtins(record.body, builtin_types=(bytes,)))
    return fields


def format_json(record: EventRecord) -> str:
    """One line of `json_fields`."""
    return msgspec.json.encode(json_fields(record)).decode()


def parse_json(line: str) -> EventRecord:
    """The record that `format_json` made the line of.

    Raises:
        DecodeError: it is no such line.
    """
    try:
        fields = msgspec.json.decode(line, type=dict[str, object])
        about = msgspec.convert(fields, _Line)
        body = msgspec.convert(
            _with_hashes(fields.get(_body_key(about.topic))), _BODY_TYPES[about.topic], builtin_types=(bytes,)
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise DecodeError(f"not a line of `nebula events --json`: {error}") from error
    return EventRecord(
        published_at_ms=round(about.time.timestamp() * 1e3),
        topic=about.topic,
        namespace=about.namespace,
        component=about.component,
        publisher_id=about.publisher_id,
        sequence=about.sequence,
        worker=None if about.worker_id is None else WorkerWithDpRank(about.worker_id, about.dp_rank),
        epoch=about.epoch,
        tier=about.tier,
        body=body,
    )


def _body_key(topic: Topic) -> str:
    return _BODY_KEYS.get(topic, "event")


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _with_hashes(value: object) -> object:
    """Inverse of `_plain`: segment hashes are the only bytes in events."""
    if isinstance(value, dict):
        return {
            key: bytes.fromhex(item) if key == _HASH_KEY and isinstance(item, str) else _with_hashes(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_with_hashes(item) for item in value]
    return value


def _iso_time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1e3, UTC).isoformat(timespec="milliseconds")
