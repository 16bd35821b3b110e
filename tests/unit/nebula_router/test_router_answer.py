"""One stream and one usage, however many workers made the answer."""

import pytest
from support.router_replies import a_receipt, prefill_chunk
from support.router_world import body_of, tokens_in

from nebula_protocol.codec import from_plain
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.receipt import RECEIPT_KEY, Receipt
from nebula_router.answer import Answer, Prefilled
from nebula_router.errors import WorkerRefusedError
from nebula_router.ports import JsonObject
from nebula_router.request import RoutedRequest

WORKER, DECODE_WORKER = WorkerId(1), WorkerId(91)


def new_answer(max_tokens: int | None = 3, *, extra_fields: tuple[str, ...] = ()) -> Answer:
    """To a prompt of 2 tokens."""
    body = body_of([1, 2], max_tokens=max_tokens, extra_fields=extra_fields)
    return Answer(RoutedRequest.read(body, RequestId("r"), 100))


def prefilled(token_ids: list[int], **changes: object) -> Prefilled:
    return Prefilled.read(WORKER, prefill_chunk(a_receipt(), token_ids) | changes)


def refusal_of(chunk: JsonObject) -> str:
    with pytest.raises(WorkerRefusedError) as refused:
        Prefilled.read(WORKER, chunk)
    assert refused.value.worker_id == WORKER
    return refused.value.reason


def test_the_first_chunk_is_the_prefill_workers_token_and_nothing_of_the_handover() -> None:
    answer = new_answer()
    assert answer.first_chunk(prefilled([7]), DECODE_WORKER) == {"token_ids": [7], "index": 0}
    assert not answer.finished
    assert answer.request.token_ids == [1, 2, 7]
    assert answer.request.remaining_tokens == 2


def test_the_last_token_ends_the_answer_with_one_usage() -> None:
    answer = new_answer(max_tokens=3)
    answer.first_chunk(prefilled([7]), DECODE_WORKER)
    assert answer.next_chunk({"token_ids": [8]}) == {"token_ids": [8]}
    own_usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    last = answer.next_chunk({"token_ids": [9], "finish_reason": "length", "completion_usage": own_usage})
    # 2 tokens of the client's prompt; 1 of prefill and 2 of decode.
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert last == {"token_ids": [9], "finish_reason": "length", "completion_usage": usage}
    assert answer.finished


def test_a_single_token_is_the_whole_answer() -> None:
    answer = new_answer(max_tokens=1)
    chunk = answer.first_chunk(prefilled([7]), None)
    usage = {"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}
    assert chunk == {"token_ids": [7], "index": 0, "finish_reason": "length", "completion_usage": usage}
    assert answer.finished


@pytest.mark.parametrize("reason", ["stop", "eos", "error"])
def test_a_first_token_that_ends_the_answer_ends_it(reason: str) -> None:
    answer = new_answer(max_tokens=9)
    assert answer.first_chunk(prefilled([7], finish_reason=reason), DECODE_WORKER)["finish_reason"] == reason
    assert answer.finished


def test_the_limit_ends_the_answer_although_the_worker_does_not_say_so() -> None:
    answer = new_answer(max_tokens=2)
    answer.first_chunk(prefilled([7]), DECODE_WORKER)
    assert answer.next_chunk({"token_ids": [8]})["finish_reason"] == "length"
    assert answer.finished


def test_without_a_limit_only_a_worker_ends_the_answer() -> None:
    answer = new_answer(max_tokens=None)
    answer.first_chunk(prefilled([7]), DECODE_WORKER)
    answer.next_chunk({"token_ids": [8] * 50})
    assert not answer.finished
    last = answer.next_chunk({"token_ids": [], "finish_reason": "stop"})
    assert last["completion_usage"] == {"prompt_tokens": 2, "completion_tokens": 51, "total_tokens": 53}


def test_chunks_without_tokens_or_with_empty_fields_pass() -> None:
    answer = new_answer()
    answer.first_chunk(prefilled([7]), DECODE_WORKER)
    assert answer.next_chunk({"token_ids": None, "text": "x", "cum_log_probs": None}) == {"text": "x"}
    assert answer.request.generated == (7,)


def test_the_receipt_and_the_workers_come_along_when_asked_for() -> None:
    receipt = a_receipt(invalid_hit_tokens=3)
    answer = new_answer(extra_fields=("engine_data",))
    chunk = answer.first_chunk(Prefilled.read(WORKER, prefill_chunk(receipt, [7])), DECODE_WORKER)
    data = chunk["engine_data"]
    assert isinstance(data, dict)
    assert from_plain(data[RECEIPT_KEY], Receipt) == receipt
    assert data["worker_id"] == {"prefill_worker_id": 1, "decode_worker_id": 91}


def test_a_decode_workers_own_data_never_reaches_the_client() -> None:
    answer = new_answer(extra_fields=("engine_data",))
    answer.first_chunk(prefilled([7]), DECODE_WORKER)
    chunk = answer.next_chunk({"token_ids": [8], "engine_data": {"a": 1}, "disaggregated_params": {"b": 2}})
    assert chunk == {"token_ids": [8]}


def test_after_a_second_prefill_the_answer_goes_on_behind_what_was_sent() -> None:
    answer = new_answer(max_tokens=4)
    chunks = [answer.first_chunk(prefilled([7]), DECODE_WORKER), answer.next_chunk({"token_ids": [8]})]
    assert answer.request.token_ids == [1, 2, 7, 8]
    chunks += [answer.first_chunk(prefilled([9]), DECODE_WORKER), answer.next_chunk({"token_ids": [10]})]
    assert tokens_in(chunks) == [7, 8, 9, 10]
    assert chunks[-1]["completion_usage"] == {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}
    assert [chunk.get("finish_reason") for chunk in chunks] == [None, None, None, "length"]


def test_a_prefill_reply_without_a_handover_is_a_refusal() -> None:
    assert refusal_of({"token_ids": [7]}) == "its prefill reply has no disaggregated_params"
    assert refusal_of({"token_ids": [7], "disaggregated_params": {}}).startswith("its handover cannot be read: ")
    params = {"nebula_handover": {"version": 1}}
    assert refusal_of({"token_ids": [7], "disaggregated_params": params}).startswith(
        "its handover cannot be read: not a Handover: "
    )


@pytest.mark.parametrize("changes", [{}, {"finish_reason": None}, {"token_ids": None}])
def test_a_prefill_reply_without_a_token_is_a_refusal(changes: JsonObject) -> None:
    assert refusal_of(prefill_chunk(a_receipt(), []) | changes) == "its prefill reply has no token"


def test_a_prefill_reply_may_end_an_answer_before_its_first_token() -> None:
    answer = new_answer()
    chunk = answer.first_chunk(prefilled([], finish_reason="stop"), DECODE_WORKER)
    assert (chunk["finish_reason"], answer.finished) == ("stop", True)
    assert chunk["completion_usage"] == {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2}
