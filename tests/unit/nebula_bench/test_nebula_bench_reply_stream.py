"""A reply's stream, in the very lines that Dynamo's frontend sends."""

import msgspec
import pytest

from nebula_bench.replay.reply_stream import ReplyStream
from nebula_protocol.ids import RequestId, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.receipt import Receipt, StepWork, Timing
from nebula_protocol.subjects import Topic

CONTENT = b'data: {"id":"cmpl-1","choices":[{"text":"wo","index":0}],"object":"text_completion","usage":null}\n'
END = b'data: {"id":"cmpl-1","choices":[{"text":"","index":0,"finish_reason":"length"}],"nvext":null}\n'
DONE = b"data: [DONE]\n"
ERROR = b'data: {"error":{"message":"Internal server error","type":"internal_server_error","code":500}}\n'

RECEIPT = Receipt(
    request_id=RequestId("r1"),
    worker=WorkerWithDpRank(WorkerId(2**63 + 5)),
    epoch=WorkerEpoch(1),
    prompt_tokens=100,
    prefix_hit_tokens=16,
    segment_hit_tokens=50,
    local_hit_tokens=30,
    fetched_hit_tokens=20,
    recomputed_tokens=4,
    computed_tokens=34,
    invalid_hit_tokens=0,
    segments=(),
    timing=Timing(queue_s=0.1, wait_s=0.0, compute_s=0.2, total_s=0.3),
    work=StepWork(computed_tokens=38, attention_pairs=1e3, num_steps=1, step_tokens=38, step_pairs=1e3, step_s=0.2),
    last_event_ids={},
)


def feed(*lines: bytes) -> ReplyStream:
    """Line n arrives at second n."""
    reply = ReplyStream()
    for second, line in enumerate(lines):
        reply.feed(line, float(second))
    reply.close()
    return reply


def receipt_line(receipt: object) -> bytes:
    engine_data = {"nebula_receipt": receipt, "other": 1}
    chunk = {"choices": [{"text": "wo", "finish_reason": "length"}], "nvext": {"engine_data": engine_data}}
    return b"data: " + msgspec.json.encode(chunk) + b"\n"


def test_the_first_content_is_the_first_text_not_the_first_line() -> None:
    empty = b'data: {"choices":[{"text":"","index":0}]}\n'
    reply = feed(b": comment\n", b"\n", empty, CONTENT, CONTENT, END, DONE)
    assert reply.first_content_s == 3.0
    assert reply.error is None


def test_an_answer_whose_text_is_empty_counts_from_its_end() -> None:
    reply = feed(b'data: {"choices":[]}\n', END, DONE)
    assert reply.first_content_s == 1.0
    assert reply.error is None


def test_the_receipt_comes_back_whole() -> None:
    reply = feed(receipt_line(msgspec.to_builtins(RECEIPT)), DONE)
    assert reply.receipt == RECEIPT
    assert reply.error is None


def test_a_receipt_with_event_ids_of_each_topic_comes_back_whole() -> None:
    receipt = msgspec.structs.replace(RECEIPT, last_event_ids={Topic.KV_EVENTS: 7, Topic.PIC_EVENTS: -1})
    assert feed(receipt_line(msgspec.to_builtins(receipt)), DONE).receipt == receipt


def test_engine_data_without_a_receipt_is_no_error() -> None:
    chunk = b'data: {"choices":[{"text":"a","finish_reason":"stop"}],"nvext":{"engine_data":{"x":1}}}\n'
    reply = feed(chunk, DONE)
    assert (reply.receipt, reply.error) == (None, None)


def test_something_else_in_the_receipts_place_fails_the_request() -> None:
    reply = feed(receipt_line({"version": 1}), DONE)
    assert reply.receipt is None
    assert reply.error is not None
    assert reply.error.startswith("not a receipt")


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ((CONTENT, ERROR, DONE), "500: Internal server error"),
        ((ERROR, DONE), "500: Internal server error"),
        ((CONTENT,), "the stream ended before the answer was complete"),
        ((CONTENT, DONE), "the stream ended before the answer was complete"),
        ((), "the stream ended before the answer was complete"),
    ],
    ids=["error after content", "error", "torn", "no finish reason", "nothing"],
)
def test_a_stream_that_fails_says_why(lines: tuple[bytes, ...], error: str) -> None:
    assert feed(*lines).error == error


def test_a_line_that_is_no_chunk_fails_the_request() -> None:
    reply = feed(b"data: nonsense\n", CONTENT, END, DONE)
    assert reply.error is not None
    assert reply.error.startswith("not a completion chunk")
