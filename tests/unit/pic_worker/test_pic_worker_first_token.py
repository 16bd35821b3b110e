"""What of an answer a decode worker says at once, and what it still has to make."""

from typing import Any

import pytest
from msgspec import structs
from support.engine_world import EngineWorld, passage, unplanned

from nebula_protocol.annotations import RequestOptions
from nebula_protocol.handover import Handover, Sampled, TopToken
from nebula_protocol.ids import RequestId, WorkerEpoch, WorkerId
from pic_worker.first_token import begin_answer
from pic_worker.work import WorkRequest

PROMPT = passage(1, 12)
FIRST = Sampled((41,), "length", (-0.5,), ((TopToken(41, " a", -0.5, 1),),))
HANDOVER = Handover(
    request_id=RequestId("r"),
    prefill_worker_id=WorkerId(1),
    epoch=WorkerEpoch(7),
    prompt_tokens=12,
    kv_bytes=120,
    receipt=EngineWorld().serve(unplanned("r", PROMPT)),
    first=FIRST,
)
GUIDED = {"guided_decoding": {"regex": "[0-9]+"}}


def work(max_tokens: int | None = 5, **body: object) -> WorkRequest:
    return WorkRequest(PROMPT, max_tokens, RequestOptions(), None, None, {"token_ids": PROMPT.tolist(), **body})


def saying(first: Sampled | None) -> Handover:
    return structs.replace(HANDOVER, first=first)


def rest_of(asked: WorkRequest, handover: Handover = HANDOVER) -> WorkRequest:
    rest = begin_answer(asked, handover).rest
    assert rest is not None
    return rest


def test_the_token_of_prefill_is_said_with_its_probabilities_and_does_not_end_the_answer() -> None:
    begun = begin_answer(work(), HANDOVER)
    assert begun.first == structs.replace(FIRST, finish_reason=None)


def test_the_rest_stands_behind_the_token_and_is_one_token_shorter() -> None:
    rest = rest_of(work(max_tokens=5))
    assert rest.tokens.tolist() == [*PROMPT.tolist(), 41]
    assert rest.tokens.dtype == PROMPT.dtype
    assert rest.max_tokens == 4


def test_an_answer_without_a_limit_has_none_behind_its_first_token_either() -> None:
    assert rest_of(work(max_tokens=None)).max_tokens is None


@pytest.mark.parametrize(("asked", "left"), [(5, 4), (1, 0), (0, 0)])
def test_the_token_counts_towards_the_least_that_was_asked_for(asked: int, left: int) -> None:
    given = work(stop_conditions={"min_tokens": asked, "ignore_eos": True})
    assert rest_of(given).body["stop_conditions"] == {"min_tokens": left, "ignore_eos": True}
    assert given.body["stop_conditions"] == {"min_tokens": asked, "ignore_eos": True}


@pytest.mark.parametrize(
    "body", [{}, {"stop_conditions": None}, {"stop_conditions": {"min_tokens": None, "stop": ["a"]}}], ids=repr
)
def test_options_in_which_no_least_is_asked_for_stay_as_they_are(body: dict[str, Any]) -> None:
    given = work(**body)
    assert rest_of(given).body == given.body


@pytest.mark.parametrize("reason", ["stop", "eos", "cancelled"])
def test_a_first_token_that_ends_the_answer_leaves_nothing_to_make(reason: str) -> None:
    begun = begin_answer(work(), saying(Sampled((2,), reason)))
    assert begun.first == Sampled((2,), reason)
    assert begun.rest is None


def test_a_stop_among_the_limit_s_only_token_is_still_a_stop() -> None:
    begun = begin_answer(work(max_tokens=1), saying(Sampled((2,), "stop")))
    assert (begun.first, begun.rest) == (Sampled((2,), "stop"), None)


@pytest.mark.parametrize("told", [None, "length"])
def test_an_answer_of_one_token_has_its_length_with_the_first(told: str | None) -> None:
    begun = begin_answer(work(max_tokens=1), saying(Sampled((41,), told)))
    assert (begun.first, begun.rest) == (Sampled((41,), "length"), None)


def test_an_answer_of_two_tokens_has_one_left_to_make() -> None:
    assert rest_of(work(max_tokens=2)).max_tokens == 1


@pytest.mark.parametrize("max_tokens", [2, 5, None])
def test_a_grammar_sees_every_token_so_the_first_is_made_again(max_tokens: int | None) -> None:
    asked = work(max_tokens, sampling_options=GUIDED, stop_conditions={"min_tokens": 3})
    begun = begin_answer(asked, HANDOVER)
    assert begun.first is None
    assert begun.rest is asked


@pytest.mark.parametrize(("max_tokens", "reason"), [(1, "length"), (1, "stop"), (5, "stop")])
def test_where_the_grammar_has_seen_the_whole_answer_nothing_is_made_again(max_tokens: int, reason: str) -> None:
    # Of an answer that has ended, prefill holds no KV.
    begun = begin_answer(work(max_tokens, sampling_options=GUIDED), saying(Sampled((2,), reason)))
    assert (begun.first, begun.rest) == (Sampled((2,), reason), None)


@pytest.mark.parametrize("options", [{"guided_decoding": None}, {"temperature": 0.5}, None], ids=repr)
def test_an_answer_without_a_grammar_begins_with_the_token_of_prefill(options: Any) -> None:
    assert begin_answer(work(sampling_options=options), HANDOVER).first is not None


@pytest.mark.parametrize("handover", [None, saying(None)], ids=["no handover", "one without a token"])
def test_without_a_token_of_prefill_the_whole_answer_is_to_be_made(handover: Handover | None) -> None:
    asked = work(max_tokens=1, stop_conditions={"min_tokens": 1})
    begun = begin_answer(asked, handover)
    assert begun.first is None
    assert begun.rest is asked
