"""What a tokenized request of Dynamo's frontend says to Nebula: read by router and workers with this one function."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, cast

from nebula_protocol.annotations import RequestOptions, parse_annotations
from nebula_protocol.errors import AnnotationError

MAX_SALT_CHARS: Final = 4096

_PLAIN: Final = re.compile(r"[!-~]{1,128}")
_DIGEST_PREFIX: Final = "sha256:"


def read_options(request: Mapping[str, object]) -> RequestOptions:
    """The annotations of a request, and its tenant from wherever it is named.

    The frontend writes `cache_salt` of the body or of `nvext`, and the header `x-tenant-id`, into `routing` and into
    `extra_args.nvext`.

    Raises:
        AnnotationError: an annotation cannot be understood, or the places name different tenants.
    """
    options = parse_annotations(_annotations(request))
    given = {
        "annotation nebula.salt": options.cache_salt or None,
        "routing.cache_salt": _mapping(request, "routing").get("cache_salt"),
        "nvext.cache_salt": _mapping(_mapping(request, "extra_args"), "nvext").get("cache_salt"),
        "cache_salt": request.get("cache_salt"),
    }
    salts = {place: _salt(place, value) for place, value in given.items() if value is not None}
    if len(set(salts.values())) > 1:
        raise AnnotationError(f"{' and '.join(salts)} name different tenants")
    return replace(options, cache_salt=next(iter(salts.values()), ""))


def _salt(place: str, value: object) -> str:
    """A salt of 1 to 128 visible ASCII characters as it is, any other by its digest: two texts never become one."""
    if not isinstance(value, str):
        raise AnnotationError(f"{place} must be a text")
    if len(value) > MAX_SALT_CHARS:
        raise AnnotationError(f"{place} has more than {MAX_SALT_CHARS} characters")
    if not value or (_PLAIN.fullmatch(value) and not value.startswith(_DIGEST_PREFIX)):
        return value
    return _DIGEST_PREFIX + hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


def _annotations(request: Mapping[str, object]) -> list[str]:
    annotations = request.get("annotations")
    if annotations is None:
        return []
    if not isinstance(annotations, list) or not all(isinstance(annotation, str) for annotation in annotations):
        raise AnnotationError("annotations must be a list of strings")
    return annotations


def _mapping(request: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = request.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise AnnotationError(f"{key} must be an object")
    return cast("Mapping[str, object]", value)
