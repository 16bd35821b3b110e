"""An event as one JSON object for programs."""

from datetime import UTC, datetime

import msgspec

from nebula_cli.event_record import EventBody, EventRecord
from nebula_protocol.events import Decision, SplitReview


def format_json(record: EventRecord) -> str:
    """One line. Hashes of segments are hexadecimal text; ids are plain integers of up to 64 bits."""
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
    body = _plain(msgspec.to_builtins(record.body, builtin_types=(bytes,)))
    fields[_body_key(record.body)] = body
    return msgspec.json.encode(fields).decode()


def _body_key(body: EventBody) -> str:
    match body:
        case Decision():
            return "decision"
        case SplitReview():
            return "review"
        case _:
            return "event"


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _iso_time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1e3, UTC).isoformat(timespec="milliseconds")
