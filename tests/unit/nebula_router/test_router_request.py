"""Requests as Dynamo's frontend sends them, and bodies as workers get them."""

import copy

import pytest
from support.router_world import body_of, spans

from nebula_protocol.ids import RequestId
from nebula_router.errors import BadRequestError
from nebula_router.ports import JsonObject
from nebula_router.request import RoutedRequest

CONTEXT = 10


def read(body: JsonObject) -> RoutedRequest:
    return RoutedRequest.read(body, RequestId("r"), CONTEXT)


def reason_of(body: JsonObject) -> str:
    """Why the request is refused."""
    with pytest.raises(BadRequestError) as refused:
        read(body)
    return str(refused.value)


def test_tokens_limit_and_options_are_read() -> None:
    annotations = ["nebula.pic=off", "nebula.salt=acme", spans((0, 2)), "somebody else's"]
    request = read(body_of([1, 2, 3], max_tokens=7, annotations=annotations))
    assert request.tokens.tolist() == request.token_ids == [1, 2, 3]
    assert request.max_tokens == 7
    assert (request.options.pic, request.options.cache_salt, request.options.spans) == (False, "acme", ((0, 2),))


def test_a_bare_body_is_a_request_without_a_limit() -> None:
    request = read({"token_ids": [1], "annotations": None})
    assert request.max_tokens is None
    assert request.options.pic is None


@pytest.mark.parametrize("token_ids", [[], None, "text", {"a": 1}])
def test_an_empty_prompt_is_refused(token_ids: object) -> None:
    assert reason_of({"token_ids": token_ids}) == "the prompt is empty"


def test_a_request_without_tokens_is_refused() -> None:
    assert reason_of({"prompt": "text"}) == "the prompt is empty"


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused() -> None:
    assert len(read(body_of([1] * 9)).token_ids) == 9
    assert reason_of(body_of([1] * 10)) == "the prompt has 10 tokens, the context holds 10 with the answer"


@pytest.mark.parametrize("odd", [1.5, "1", -1, 2**32, None, [1]])
def test_tokens_that_are_no_ids_are_refused(odd: object) -> None:
    reason = reason_of({"token_ids": [1, odd]})
    assert reason.startswith("token ids must be integers between 0 and 2**32 - 1: ")


@pytest.mark.parametrize("annotations", ["nebula.pic=off", {"nebula.pic": "off"}, ["ok", 1], 5])
def test_annotations_that_are_no_list_of_texts_are_refused(annotations: object) -> None:
    assert reason_of({"token_ids": [1], "annotations": annotations}) == "annotations must be a list of strings"


@pytest.mark.parametrize(
    ("annotation", "hint"),
    [
        ("nebula.spans=[[0,2]", "nebula.spans=[[0,512],[512,900]]"),
        ("nebula.spans=[[0]]", "nebula.spans=[[0,512],[512,900]]"),
        ("nebula.spans=[[0,1.5]]", "nebula.spans=[[0,512],[512,900]]"),
        ("nebula.pic=maybe", "nebula.pic=on or nebula.pic=off"),
        ("nebula.salt=", "1 to 128 visible ASCII characters"),
        ("nebula.span=[[0,2]]", "known are nebula.spans, nebula.pic, nebula.salt"),
    ],
)
def test_a_wrong_annotation_is_refused_with_the_right_form(annotation: str, hint: str) -> None:
    reason = reason_of(body_of([1, 2, 3], annotations=[annotation]))
    assert annotation.partition("=")[0] in reason
    assert hint in reason


def test_an_annotation_that_is_given_twice_is_refused() -> None:
    assert "nebula.pic is given twice" in reason_of(body_of([1], annotations=["nebula.pic=on", "nebula.pic=off"]))


def test_a_workers_body_asks_for_one_token_and_keeps_the_rest_of_the_clients() -> None:
    body = body_of([1, 2], max_tokens=5, extra_fields=["timing"])
    before = copy.deepcopy(body)
    assert read(body).body_with({"plan": 1}) == before | {
        "stop_conditions": {"max_tokens": 1, "ignore_eos": False},
        "extra_args": {"nvext": {"extra_fields": ["timing"]}, "plan": 1},
    }
    assert body == before


def test_a_bare_body_gets_what_a_worker_needs() -> None:
    sent = read({"token_ids": [1]}).body_with({})
    assert sent == {"token_ids": [1], "stop_conditions": {"max_tokens": 1}, "extra_args": {}}


@pytest.mark.parametrize(
    "named",
    [
        {"routing": {"cache_salt": "acme"}},
        {"extra_args": {"nvext": {"cache_salt": "acme"}}},
        {"annotations": ["nebula.salt=acme"]},
    ],
)
def test_a_tenant_stays_with_its_request_on_the_way_to_a_worker(named: JsonObject) -> None:
    request = read({"token_ids": [1, 2], **named})
    assert request.options.cache_salt == "acme"
    sent = request.body_with({"plan": 1})
    assert read(sent).options.cache_salt == "acme"


def test_a_request_that_names_two_tenants_is_refused() -> None:
    body: JsonObject = {"token_ids": [1], "routing": {"cache_salt": "a"}, "annotations": ["nebula.salt=b"]}
    assert "name different tenants" in reason_of(body)


def test_what_no_worker_offers_is_refused_before_a_worker_is_chosen() -> None:
    reason = reason_of({"token_ids": [1], "multi_modal_data": {"image_url": [{"Url": "x"}]}})
    assert reason.startswith("multi_modal_data cannot be a dict: the model takes text only")


def test_an_answer_ends_with_the_context() -> None:
    # The context holds 10: 4 tokens of prompt leave 6.
    assert read(body_of([1] * 4, max_tokens=6)).max_tokens == 6
    assert read(body_of([1] * 4, max_tokens=7)).max_tokens == 6


def test_ids_outside_the_vocabulary_are_refused_where_it_is_known() -> None:
    body = body_of([1, 5])
    assert RoutedRequest.read(body, RequestId("r"), CONTEXT, 6).token_ids == [1, 5]
    with pytest.raises(BadRequestError, match="outside the vocabulary: 5"):
        RoutedRequest.read(body, RequestId("r"), CONTEXT, 5)
