"""Every record of the wire contract survives every way in which it travels."""

import importlib
import json
import pkgutil
from collections.abc import Iterator
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nebula_protocol
from nebula_protocol.codec import decode, encode, from_plain, to_plain
from nebula_protocol.cutting import ContentChunks, CutterConfig

NOT_ON_THE_WIRE = {ContentChunks, CutterConfig}

SCALARS: dict[object, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=12),
    bytes: st.binary(max_size=20),
    NoneType: st.none(),
    # Another program's plain values, passed through: integers that both MessagePack and JSON can carry.
    object: st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=12)),
}


def record_types() -> Iterator[type[msgspec.Struct]]:
    for info in pkgutil.iter_modules(nebula_protocol.__path__, "nebula_protocol."):
        for name, value in vars(importlib.import_module(info.name)).items():
            is_public_struct = isinstance(value, type) and issubclass(value, msgspec.Struct) and name[0] != "_"
            if is_public_struct and value.__module__ == info.name and value not in NOT_ON_THE_WIRE:
                yield value


RECORD_TYPES = list(record_types())


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type: scalars, new types, enums, literals, unions, tuples, dicts and records."""
    if annotation in SCALARS:
        return SCALARS[annotation]
    if isinstance(annotation, NewType):
        return values_of(annotation.__supertype__)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return st.one_of([values_of(argument) for argument in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values_of, arguments))
    if origin is dict:
        return st.dictionaries(values_of(arguments[0]), values_of(arguments[1]), max_size=2)
    if issubclass(annotation, Enum):
        return st.sampled_from(list(annotation))
    return records_of(annotation)


def records_of(record_type: type[msgspec.Struct]) -> st.SearchStrategy[msgspec.Struct]:
    fields = msgspec.structs.fields(record_type)
    return st.builds(record_type, **{field.name: values_of(field.type) for field in fields})


def name_of(record_type: type[msgspec.Struct]) -> str:
    return record_type.__name__


def test_the_records_are_found() -> None:
    names = {name_of(record_type) for record_type in RECORD_TYPES}
    assert {"Plan", "Receipt", "WorkerPicEvents", "Decision", "StateChunk", "FetchReply", "Handover"} <= names


@pytest.mark.parametrize("record_type", RECORD_TYPES, ids=name_of)
@given(data=st.data())
@settings(max_examples=20)
def test_a_record_comes_back_from_its_bytes(record_type: type[msgspec.Struct], data: st.DataObject) -> None:
    record = data.draw(records_of(record_type))
    assert decode(encode(record), record_type) == record


@pytest.mark.parametrize("record_type", RECORD_TYPES, ids=name_of)
@given(data=st.data())
@settings(max_examples=20)
def test_a_record_comes_back_from_plain_values_that_went_through_json(
    record_type: type[msgspec.Struct], data: st.DataObject
) -> None:
    record = data.draw(records_of(record_type))
    assert from_plain(json.loads(json.dumps(to_plain(record))), record_type) == record
