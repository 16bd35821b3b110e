"""A request's tenant, wherever Dynamo's frontend writes it, and its annotations."""

from collections.abc import Callable

import pytest

from nebula_protocol.errors import AnnotationError
from nebula_protocol.request_options import MAX_SALT_CHARS, read_options

PLACES: dict[str, Callable[[object], dict[str, object]]] = {
    "annotation nebula.salt": lambda salt: {"annotations": [f"nebula.salt={salt}"]},
    "routing.cache_salt": lambda salt: {"routing": {"cache_salt": salt}},
    "nvext.cache_salt": lambda salt: {"extra_args": {"nvext": {"cache_salt": salt}}},
    "cache_salt": lambda salt: {"cache_salt": salt},
}


def salt_of(text: str) -> str:
    return read_options({"routing": {"cache_salt": text}}).cache_salt


def test_a_request_without_a_tenant_has_no_salt() -> None:
    nothing: list[dict[str, object]] = [{}, {"routing": None, "extra_args": None}, {"routing": {"cache_salt": None}}]
    assert {read_options(request).cache_salt for request in nothing} == {""}
    assert salt_of("") == ""


@pytest.mark.parametrize("place", PLACES)
def test_a_tenant_is_read_from_every_place(place: str) -> None:
    assert read_options(PLACES[place]("acme")).cache_salt == "acme"


def test_places_may_agree() -> None:
    assert read_options({k: v for name in PLACES for k, v in PLACES[name]("acme").items()}).cache_salt == "acme"


@pytest.mark.parametrize("one", PLACES)
@pytest.mark.parametrize("other", PLACES)
def test_places_that_differ_are_refused(one: str, other: str) -> None:
    if one == other:
        return
    with pytest.raises(AnnotationError, match="name different tenants"):
        read_options({**PLACES[one]("acme"), **PLACES[other]("umbrella")})


def test_an_empty_salt_beside_another_is_refused_as_a_different_one() -> None:
    with pytest.raises(AnnotationError, match="name different tenants"):
        read_options({"routing": {"cache_salt": ""}, "cache_salt": "acme"})


def test_any_text_is_a_tenant_of_its_own_and_becomes_visible_ascii() -> None:
    texts = ["ä", "ö", " ", "a b", "\n", "\0", "☃" * 4096, "☃" * 4095, "a" * 128, "a" * 129, "\ud800", "sha256:"]
    texts += [salt_of("ä"), salt_of("sha256:")]
    salts = [salt_of(text) for text in texts]
    assert len(set(salts)) == len(texts)
    assert all(salt.isascii() and salt.isprintable() and " " not in salt and len(salt) <= 128 for salt in salts)
    assert salt_of("a" * 128) == "a" * 128


@pytest.mark.parametrize("place", ["routing.cache_salt", "nvext.cache_salt", "cache_salt"])
@pytest.mark.parametrize("odd", [5, ["acme"], {"a": 1}, True, "a" * (MAX_SALT_CHARS + 1)])
def test_what_is_no_short_text_is_refused(place: str, odd: object) -> None:
    with pytest.raises(AnnotationError, match=place):
        read_options(PLACES[place](odd))


@pytest.mark.parametrize("odd", [{"routing": "acme"}, {"extra_args": ["acme"]}, {"extra_args": {"nvext": "acme"}}])
def test_a_place_that_cannot_be_looked_into_is_refused(odd: dict[str, object]) -> None:
    with pytest.raises(AnnotationError, match="must be an object"):
        read_options(odd)


@pytest.mark.parametrize("annotations", ["nebula.pic=off", ["ok", 1], 5])
def test_annotations_must_be_a_list_of_texts(annotations: object) -> None:
    with pytest.raises(AnnotationError, match="annotations must be a list of strings"):
        read_options({"annotations": annotations})
