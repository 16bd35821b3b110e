import msgspec
import pytest

from nebula_protocol.codec import MAX_RECORD_BYTES, decode, encode, from_plain, to_plain
from nebula_protocol.errors import DecodeError
from nebula_protocol.ids import DpRank, SegmentHash, WorkerId, WorkerWithDpRank
from nebula_protocol.messages import SetSplit, WantedSegment


@pytest.mark.parametrize("data", [b"", b"\xc1", encode("text"), encode(SetSplit(prefix_ratio=0.5))[:-1]])
def test_bytes_of_no_record_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="not a SetSplit"):
        decode(data, SetSplit)


def test_a_record_of_another_type_is_refused() -> None:
    with pytest.raises(DecodeError, match="not a SetSplit"):
        decode(encode(WorkerWithDpRank(WorkerId(1))), SetSplit)


def test_a_record_over_the_limit_is_refused_unread() -> None:
    with pytest.raises(DecodeError, match="over the limit"):
        decode(b"\xc0" * (MAX_RECORD_BYTES + 1), SetSplit)


def test_keys_of_a_later_version_are_passed_over() -> None:
    later = msgspec.msgpack.encode({"type": "set_split", "prefix_ratio": 0.5, "new_in_version_2": [1]})
    assert decode(later, SetSplit) == SetSplit(prefix_ratio=0.5)


def test_plain_values_hold_hashes_as_base64_text() -> None:
    wanted = WantedSegment(segment_hash=SegmentHash(bytes(16)), num_tokens=5)
    assert to_plain(wanted) == {"segment_hash": "AAAAAAAAAAAAAAAAAAAAAA==", "num_tokens": 5, "join": False}


@pytest.mark.parametrize("value", [None, [], {"worker_id": "one"}, {"dp_rank": 0}])
def test_plain_values_of_no_record_are_refused(value: object) -> None:
    with pytest.raises(DecodeError, match="not a WorkerWithDpRank"):
        from_plain(value, WorkerWithDpRank)


def test_a_default_may_be_missing_on_the_wire() -> None:
    assert from_plain({"worker_id": 7}, WorkerWithDpRank) == WorkerWithDpRank(WorkerId(7), DpRank(0))
