"""The body of a replayed request."""

import msgspec

from nebula_bench.pseudo_tokens import PseudoVocabulary
from nebula_bench.replay.completion_request import encode_completion
from nebula_bench.replay.settings import Marks
from nebula_bench.workload import TraceRequest, TraceSegment
from nebula_protocol.annotations import RequestOptions, parse_annotations

VOCABULARY = PseudoVocabulary()
REQUEST = TraceRequest(
    workload="demo",
    index=0,
    session="s0",
    segments=(TraceSegment("system", "a", 3), TraceSegment("user", "b", 2)),
)


def body(marks: Marks, *annotations: str) -> dict[str, object]:
    data = encode_completion(
        REQUEST, model="m", max_tokens=4, marks=marks, vocabulary=VOCABULARY, annotations=annotations
    )
    return msgspec.json.decode(data, type=dict[str, object])


def test_the_prompt_is_the_segments_tokens_one_behind_another() -> None:
    expected = [*VOCABULARY.tokens("a", 3).tolist(), *VOCABULARY.tokens("b", 2).tolist()]
    assert body(Marks.SPANS)["prompt"] == expected


def test_the_answer_is_streamed_and_brings_the_receipt() -> None:
    decoded = body(Marks.SPANS)
    assert (decoded["model"], decoded["max_tokens"], decoded["stream"]) == ("m", 4, True)
    assert decoded["nvext"] == {
        "annotations": ["nebula.spans=[[0,3],[3,5]]"],
        "extra_fields": ["worker_id", "timing", "engine_data"],
    }


def test_the_router_reads_the_annotations_as_they_are_meant() -> None:
    nvext = body(Marks.SPANS, "nebula.pic=off")["nvext"]
    assert isinstance(nvext, dict)
    assert parse_annotations(nvext["annotations"]) == RequestOptions(spans=((0, 3), (3, 5)), pic=False)


def test_without_marks_the_router_is_told_nothing() -> None:
    nvext = body(Marks.NONE)["nvext"]
    assert isinstance(nvext, dict)
    assert nvext["annotations"] == []
