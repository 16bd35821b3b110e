"""What becomes of each field of a tokenized request, and that docs/api.md says so."""

import re
from pathlib import Path

import numpy as np
import pytest

from nebula_protocol.errors import RequestFieldError
from nebula_protocol.request_fields import (
    HONOURED,
    NO_MEANING,
    REFUSALS,
    TREATMENTS,
    check_fields,
    check_token_ids,
    fields_of,
)

API = Path(__file__).parents[3] / "docs" / "api.md"
ROW = re.compile(r"^\| `([a-z_.]+)` \| (honoured|refused|no meaning) \|", re.MULTILINE)
TOKENS = np.array([3, 9], dtype=np.uint32)


def request_with(path: str, value: object) -> dict[str, object]:
    for key in reversed(path.split(".")):
        value = {key: value}
    assert isinstance(value, dict)
    return value


def test_the_table_of_the_documentation_is_the_one_of_the_code() -> None:
    rows = ROW.findall(API.read_text())
    assert len(rows) == len(dict(rows))
    assert dict(rows) == {path: str(treatment) for path, treatment in TREATMENTS.items()}


def test_a_field_has_one_treatment() -> None:
    assert len(TREATMENTS) == len(HONOURED) + len(NO_MEANING) + len(REFUSALS)


@pytest.mark.parametrize("path", REFUSALS)
def test_what_is_refused_has_a_reason_with_the_field(path: str) -> None:
    for value in (7, True, {"a": 1}, "text"):
        if value in REFUSALS[path].harmless:
            continue
        with pytest.raises(RequestFieldError, match=re.escape(f"{path} cannot be ")) as refused:
            check_fields(request_with(path, value))
        assert REFUSALS[path].reason in str(refused.value)


@pytest.mark.parametrize("path", REFUSALS)
def test_values_that_ask_for_nothing_pass(path: str) -> None:
    for value in (None, *REFUSALS[path].harmless):
        check_fields(request_with(path, value))


@pytest.mark.parametrize("path", sorted(HONOURED | NO_MEANING))
def test_what_is_honoured_or_without_meaning_passes(path: str) -> None:
    check_fields(request_with(path, 1))


@pytest.mark.parametrize("group", ["stop_conditions", "sampling_options", "output_options"])
def test_an_option_that_is_not_known_is_refused(group: str) -> None:
    with pytest.raises(RequestFieldError, match=f"{group}.novel is not known here"):
        check_fields({group: {"novel": 1}})
    check_fields({group: {"novel": None}})


def test_an_unknown_field_elsewhere_passes() -> None:
    check_fields({"novel": 1, "routing": {"novel": 1}, "extra_args": {"nebula_plan": {}}})


def test_a_group_that_is_none_is_refused() -> None:
    with pytest.raises(RequestFieldError, match="sampling_options must be an object"):
        check_fields({"sampling_options": 5})


def test_fields_are_listed_with_their_paths() -> None:
    request = {"model": "m", "routing": {"dp_rank": 1, "lora_name": None}, "multi_modal_data": {"image_url": []}}
    assert dict(fields_of(request)) == {"model": "m", "routing.dp_rank": 1, "multi_modal_data": {"image_url": []}}


def test_ids_within_the_vocabulary_pass() -> None:
    check_token_ids({"stop_conditions": {"stop_token_ids": [0, 9]}}, TOKENS, 10)
    check_token_ids({"stop_conditions": None}, TOKENS, 10)
    check_token_ids({"stop_conditions": {"stop_token_ids": [10**9]}}, TOKENS, None)


def test_a_prompt_with_an_id_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(RequestFieldError, match="token id 9 of the prompt is outside the vocabulary: 9"):
        check_token_ids({}, TOKENS, 9)


@pytest.mark.parametrize("key", ["stop_token_ids", "stop_token_ids_visible"])
@pytest.mark.parametrize("odd", [10, -1, 2**40, "a"])
def test_a_stop_id_outside_the_vocabulary_is_refused(key: str, odd: object) -> None:
    with pytest.raises(RequestFieldError, match="outside the vocabulary: 10"):
        check_token_ids({"stop_conditions": {key: [1, odd]}}, TOKENS, 10)
