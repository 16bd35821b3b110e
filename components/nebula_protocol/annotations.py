"""Client hints in `nvext.annotations`, the one field of a request that Dynamo's frontend passes through as it is."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from nebula_protocol.errors import AnnotationError, FusionError
from nebula_protocol.fusion import FUSION_FORMS, Fusion, parse_fusion

PREFIX: Final = "nebula."
MAX_SPANS: Final = 4096

# Room for MAX_SPANS pairs of eight-digit numbers; longer text is refused unread.
_MAX_SPANS_CHARS: Final = MAX_SPANS * 24
_SALT: Final = re.compile(r"[!-~]{1,128}")
_PIC: Final = {"on": True, "off": False}
_SHOWN_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What the client asked for beside the prompt."""

    spans: tuple[tuple[int, int], ...] = ()
    """Token spans [start, end) to cut as segments, as given: the prompt they must lie in is not known here."""
    pic: bool | None = None
    """None: as the deployment is set."""
    cache_salt: str = ""
    """Requests with different salts share nothing."""
    fusion: Fusion | None = None
    """None: as the worker is set."""


def parse_annotations(annotations: Sequence[str]) -> RequestOptions:
    """Options from `nebula.*` annotations; others are not Nebula's and are passed over.

    Raises:
        AnnotationError: an unknown key, a key given twice, or a value of the wrong form.
    """
    values: dict[str, str] = {}
    for annotation in annotations:
        if not annotation.startswith(PREFIX):
            continue
        key, _, value = annotation.removeprefix(PREFIX).partition("=")
        if key not in _FORMS:
            known = ", ".join(PREFIX + name for name in _FORMS)
            raise AnnotationError(f"unknown annotation {_shown(PREFIX + key)}; known are {known}")
        if key in values:
            raise AnnotationError(f"annotation {PREFIX}{key} is given twice")
        values[key] = value
    return RequestOptions(
        spans=_parse_spans(values["spans"]) if "spans" in values else (),
        pic=_parse_pic(values["pic"]) if "pic" in values else None,
        cache_salt=_parse_salt(values["salt"]) if "salt" in values else "",
        fusion=_parse_fusion(values["fusion"]) if "fusion" in values else None,
    )


def _parse_spans(value: str) -> tuple[tuple[int, int], ...]:
    if len(value) > _MAX_SPANS_CHARS:
        raise AnnotationError(f"annotation {PREFIX}spans has more than {_MAX_SPANS_CHARS} characters")
    try:
        spans = msgspec.json.decode(value, type=tuple[tuple[int, int], ...])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise _malformed("spans", value) from error
    if len(spans) > MAX_SPANS:
        raise AnnotationError(f"annotation {PREFIX}spans has {len(spans)} spans, more than {MAX_SPANS}")
    return spans


def _parse_pic(value: str) -> bool:
    if value not in _PIC:
        raise _malformed("pic", value)
    return _PIC[value]


def _parse_salt(value: str) -> str:
    if not _SALT.fullmatch(value):
        raise _malformed("salt", value)
    return value


def _parse_fusion(value: str) -> Fusion:
    try:
        return parse_fusion(value)
    except FusionError as error:
        raise AnnotationError(f"annotation {PREFIX}fusion: {error}") from error


_FORMS: Final = {
    "spans": "nebula.spans=[[0,512],[512,900]]: pairs of first token and the token behind the last",
    "pic": "nebula.pic=on or nebula.pic=off",
    "salt": "nebula.salt=TEXT: 1 to 128 visible ASCII characters",
    "fusion": f"nebula.fusion=METHOD: {FUSION_FORMS}",
}


def _malformed(key: str, value: str) -> AnnotationError:
    return AnnotationError(f"annotation {PREFIX}{key} has the value {_shown(value)}; the right form is {_FORMS[key]}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "...")
