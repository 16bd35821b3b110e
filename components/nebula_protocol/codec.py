"""Records to bytes and back. MessagePack on NATS; JSON-ready values inside Dynamo's request plane."""

from typing import TypeVar

import msgspec

from nebula_protocol.errors import DecodeError

T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()

# A record from the wire is refused before it is parsed when it is larger than any honest one.
MAX_RECORD_BYTES = 64 << 20


def encode(record: object) -> bytes:
    """MessagePack bytes of a record."""
    return _ENCODER.encode(record)


def decode(data: bytes, record_type: type[T]) -> T:
    """The record in `data`.

    Raises:
        DecodeError: not MessagePack, not of this type, or too large.
    """
    if len(data) > MAX_RECORD_BYTES:
        raise DecodeError(f"a record of {len(data)} bytes is over the limit of {MAX_RECORD_BYTES}")
    try:
        return msgspec.msgpack.decode(data, type=record_type)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"not a {record_type.__name__}: {error}") from error


def to_plain(record: object) -> object:
    """The record as JSON-ready dicts, lists, strings and numbers; bytes become base64 text."""
    return msgspec.to_builtins(record)


def from_plain(value: object, record_type: type[T]) -> T:
    """Inverse of `to_plain`.

    Raises:
        DecodeError: the value is not such a record.
    """
    try:
        return msgspec.convert(value, type=record_type)
    except msgspec.MsgspecError as error:
        raise DecodeError(f"not a {record_type.__name__}: {error}") from error
