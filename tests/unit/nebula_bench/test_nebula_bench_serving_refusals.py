"""What a client is told about a wrong request, and what it should be told."""

import httpx
import pytest

from nebula_bench.serving.bad_input import BadInputOutcome, Refusal, expected_refusal, read_refusal
from nebula_bench.serving.bad_input_cases import Api, BadInput, CheckedBy, bad_inputs
from nebula_bench.serving.bad_input_report import bad_input_markdown, bad_input_measurements


def case(api: Api = Api.CHAT, checked_by: CheckedBy = CheckedBy.ROUTER) -> BadInput:
    return BadInput("empty span", api, {}, checked_by, "is empty")


def outcome(refusal: Refusal, *, is_alive: bool = True) -> BadInputOutcome:
    expected = expected_refusal(case())
    return BadInputOutcome(case(), False, refusal, expected, is_alive)


def test_every_case_has_a_name_of_its_own_on_each_endpoint() -> None:
    named = [(one.api, one.name) for one in bad_inputs()]
    assert len(named) == len(set(named)) > 20


@pytest.mark.parametrize("api", list(Api))
@pytest.mark.parametrize("checked_by", list(CheckedBy))
def test_what_is_wrong_is_refused_with_a_400_and_the_reason_everywhere(api: Api, checked_by: CheckedBy) -> None:
    assert expected_refusal(case(api, checked_by)) == Refusal(400, "is empty")


def test_the_reason_is_read_from_a_refused_request() -> None:
    response = httpx.Response(400, json={"message": "span [1, 1) is empty", "type": "Bad Request", "code": 400})
    assert read_refusal(response) == Refusal(400, "span [1, 1) is empty")


def test_a_refusal_that_is_no_json_is_read_as_it_is() -> None:
    assert read_refusal(httpx.Response(502, text="bad gateway")) == Refusal(502, "bad gateway")


def test_the_reason_is_read_from_an_event_of_a_stream() -> None:
    text = 'data: {"choices":[]}\n\ndata: {"error":{"message":"Internal server error","code":500}}\n\ndata: [DONE]\n\n'
    assert read_refusal(httpx.Response(200, text=text)) == Refusal(200, "Internal server error")


def test_an_answer_is_no_refusal() -> None:
    assert read_refusal(httpx.Response(200, json={"choices": [{"text": "hi"}]})) == Refusal(200, "")


def test_a_case_counts_only_with_the_right_status_and_reason_and_a_server_that_lives_on() -> None:
    good = outcome(Refusal(400, "span [1, 1) is empty"))
    wrong = [
        outcome(Refusal(500, "span [1, 1) is empty")),
        outcome(Refusal(400, "something else")),
        outcome(good.refusal, is_alive=False),
    ]
    assert good.is_as_documented
    assert not any(one.is_as_documented for one in wrong)
    cases, with_reason = bad_input_measurements([good, *wrong])
    assert (cases.id, cases.value, cases.ok) == ("bad_input_cases", 1, False)
    assert with_reason.value == 2  # The good one, and the one after which the server was dead.


def test_the_table_has_a_line_for_a_case_with_both_variants_and_shows_what_was_expected() -> None:
    streamed = BadInputOutcome(case(), True, Refusal(200, ""), expected_refusal(case()), True)
    table = bad_input_markdown([outcome(Refusal(400, "span [1, 1) is empty")), streamed])
    assert "1 of 2 requests were refused as documented" in table
    assert "| empty span | 400 span [1, 1) is empty | 200  **(expected 400 is empty)** |" in table


def test_the_table_leaves_out_where_in_the_body_the_mistake_was() -> None:
    refusals = [Refusal(400, f"is empty at line 1 column {column}") for column in (115, 114)]
    both = [BadInputOutcome(case(), index == 1, refusal, refusal, True) for index, refusal in enumerate(refusals)]
    assert "| empty span | 400 is empty | the same |" in bad_input_markdown(both)


def test_the_table_tells_once_what_both_variants_are_told_and_names_no_request() -> None:
    refusal = Refusal(500, "Failed to fold completions stream for 69aa10ab-a57b-45e6-9198-93f25c4bbe5f")
    both = [BadInputOutcome(case(), is_streamed, refusal, refusal, True) for is_streamed in (False, True)]
    assert "| empty span | 500 Failed to fold completions stream for ID | the same |" in bad_input_markdown(both)
