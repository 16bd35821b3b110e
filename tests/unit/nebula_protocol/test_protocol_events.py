import msgspec
import pytest

from nebula_protocol.codec import decode, encode
from nebula_protocol.errors import DecodeError
from nebula_protocol.events import (
    BlocksRemoved,
    BlocksStored,
    Envelope,
    KvEvent,
    KvEventData,
    PicEvent,
    SegmentEntry,
    StoreCleared,
    StoredBlock,
    WorkerKvEvent,
    WorkerPicEvents,
)
from nebula_protocol.ids import DomainId, EventId, Origin, SegmentHash, Tier, WorkerEpoch, WorkerId

KvPayload = tuple[WorkerKvEvent, ...]


def payload_of(data: object) -> bytes:
    """As Dynamo sends it: keys in its order, with some that Nebula does not use."""
    event = {"event_id": 3, "data": data, "dp_rank": 0}
    return msgspec.msgpack.encode([{"worker_id": 2**63 + 5, "storage_tier": "device", "event": event}])


def event_of(data: KvEventData | str) -> KvPayload:
    event = msgspec.convert({"event_id": 3, "data": data}, KvEvent)
    return (WorkerKvEvent(worker_id=WorkerId(2**63 + 5), event=event),)


def test_dynamos_stored_event_is_read() -> None:
    block = {"block_hash": 2**64 - 1, "tokens_hash": 9, "mm_extra_info": None}
    data = {"stored": {"parent_hash": None, "start_position": 0, "blocks": [block]}}
    blocks = (StoredBlock(block_hash=2**64 - 1, tokens_hash=9),)
    expected = KvEventData(stored=BlocksStored(parent_hash=None, start_position=0, blocks=blocks))
    assert decode(payload_of(data), KvPayload)[0].event.data == expected


def test_dynamos_removed_event_is_read() -> None:
    expected = KvEventData(removed=BlocksRemoved(block_hashes=(1, 2)))
    assert decode(payload_of({"removed": {"block_hashes": [1, 2]}}), KvPayload)[0].event.data == expected


def test_dynamos_cleared_event_is_a_bare_word() -> None:
    assert decode(payload_of("cleared"), KvPayload) == event_of("cleared")
    with pytest.raises(DecodeError):
        decode(payload_of("emptied"), KvPayload)


def test_an_envelope_carries_its_payload_unread() -> None:
    envelope = Envelope(publisher_id=1, sequence=2, published_at=3, topic="pic-events", payload=b"\xc1")
    assert decode(encode(envelope), Envelope) == envelope


def test_what_happened_is_named_on_the_wire() -> None:
    events = WorkerPicEvents(
        worker_id=WorkerId(1),
        epoch=WorkerEpoch(2),
        tier=Tier.HOST,
        events=(PicEvent(event_id=EventId(0), data=StoreCleared()),),
    )
    plain = msgspec.msgpack.decode(encode(events))
    assert plain["events"] == [{"event_id": 0, "dp_rank": 0, "data": {"type": "store_cleared"}}]


def test_entries_of_a_full_state_travel_without_their_keys() -> None:
    entry = SegmentEntry(SegmentHash(b"h" * 16), DomainId("d"), 300, Origin.ALONE)
    assert msgspec.msgpack.decode(encode(entry)) == [b"h" * 16, "d", 300, "alone"]
