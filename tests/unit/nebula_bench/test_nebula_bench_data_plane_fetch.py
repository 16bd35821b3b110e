"""What is made of the answers about passages of other workers."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nebula_bench.counted_tests import TestCase as CountedTest
from nebula_bench.data_plane.faults_report import faults_markdown, faults_measurements
from nebula_bench.data_plane.faults_settings import FaultsSettings
from nebula_bench.data_plane.fetch import FetchFigures
from nebula_bench.data_plane.fetch_report import fetch_markdown, fetch_measurements
from nebula_bench.data_plane.fetched import FetchTurn, FetchTurns, check_hits
from nebula_bench.data_plane.first_answer import AnswerStream, FirstAnswer, chat_body
from nebula_bench.data_plane.joined import JoinedPair, JoinedPairs, count_computations
from nebula_bench.data_plane.top_tokens import divergence_nats
from nebula_bench.errors import BenchError
from nebula_bench.pic_vllm.passage_prompts import MarkedPrompt
from nebula_protocol.codec import to_plain
from nebula_protocol.ids import RequestId, SegmentHash, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason, Receipt, SegmentOutcome, StepWork, Timing

FETCH, JOIN, LOCAL = Source.FETCH, Source.JOIN, Source.LOCAL
COMPUTE, COMPUTE_AT = Source.COMPUTE, Source.COMPUTE_AT


def receipt_of(
    outcomes: Sequence[tuple[int, Source, Source]] = (), *, fallback: FallbackReason | None = None, **hits: int
) -> Receipt:
    """Of (number of the passage, planned, done); each passage has 10 tokens."""
    counts = {"prefix_hit_tokens": 0, "local_hit_tokens": 0, "fetched_hit_tokens": 0} | hits
    return Receipt(
        request_id=RequestId("r"),
        worker=WorkerWithDpRank(WorkerId(1)),
        epoch=WorkerEpoch(1),
        prompt_tokens=100,
        segment_hit_tokens=counts["local_hit_tokens"] + counts["fetched_hit_tokens"],
        recomputed_tokens=0,
        computed_tokens=0,
        invalid_hit_tokens=0,
        segments=tuple(
            SegmentOutcome(
                start=10 * place,
                end=10 * place + 10,
                segment_hash=SegmentHash(bytes([passage] * 16)),
                planned=planned,
                done=done,
                fallback=fallback,
            )
            for place, (passage, planned, done) in enumerate(outcomes)
        ),
        timing=Timing(queue_s=0.0, wait_s=0.25, compute_s=0.5, total_s=0.75),
        work=StepWork(computed_tokens=0, attention_pairs=0.0, num_steps=0, step_tokens=0, step_pairs=0.0, step_s=0.0),
        last_event_ids={},
        **counts,
    )


def answer_of(after_s: float, receipt: Receipt | None = None, top: Mapping[str, float] | None = None) -> FirstAnswer:
    return FirstAnswer(after_s, receipt or receipt_of(), top if top is not None else {"a": -0.5})


# ---- distributions ----


def test_equal_distributions_do_not_differ_at_all() -> None:
    top = {"a": -0.7238471508026123, "b": -1.3091487884521484, "c": -3.0001}
    assert divergence_nats(top, dict(reversed(top.items()))) == 0.0


def test_the_divergence_is_that_over_the_told_tokens_and_the_rest() -> None:
    reference = {"a": math.log(0.5), "b": math.log(0.25)}
    other = {"a": math.log(0.25), "b": math.log(0.5)}
    # 0.5 ln 2 - 0.25 ln 2, and the same rest of 0.25 on both sides.
    assert divergence_nats(reference, other) == pytest.approx(0.25 * math.log(2))


def test_a_token_that_only_one_side_tells_of_belongs_to_the_rest() -> None:
    reference = {"a": math.log(0.5), "b": math.log(0.25)}
    other = {"a": math.log(0.25), "c": math.log(0.5)}
    # 0.5 ln 2 for a; the rest is 0.5 against 0.75.
    assert divergence_nats(reference, other) == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75))


def test_the_smallest_difference_shows() -> None:
    assert divergence_nats({"a": -0.5}, {"a": -0.5000001}) != 0.0


def test_a_distribution_on_one_token_has_no_rest() -> None:
    assert divergence_nats({"a": 0.0}, {"a": math.log(0.5)}) == pytest.approx(math.log(2))


# ---- the stream ----


def chunk_of(**fields: object) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n"


def token_chunk(*top: tuple[str, float]) -> bytes:
    likeliest = [{"token": token, "logprob": logprob, "bytes": [1]} for token, logprob in top]
    place = {"token": top[0][0], "logprob": top[0][1], "top_logprobs": likeliest}
    return chunk_of(choices=[{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [place]}}])


RECEIPT = receipt_of([(1, FETCH, FETCH)], fetched_hit_tokens=10)
RECEIPT_CHUNK = chunk_of(choices=[], nvext={"engine_data": {"nebula_receipt": to_plain(RECEIPT)}})
DONE = b"data: [DONE]\n"


def answer_in(lines: Sequence[bytes]) -> FirstAnswer:
    stream = AnswerStream(sent_s=0.0)
    for line in lines:
        stream.feed(line, 1.0)
    return stream.end()


def test_the_first_token_counts_with_its_time_and_distribution() -> None:
    stream = AnswerStream(sent_s=10.0)
    for line, now_s in (
        (b": ping\n", 10.5),
        (token_chunk(("token_id:7", -0.25), ("token_id:9", -2.0)), 11.5),
        (token_chunk(("token_id:1", -0.5)), 12.0),
        (RECEIPT_CHUNK, 12.5),
        (DONE, 13.0),
    ):
        stream.feed(line, now_s)
    assert stream.end() == FirstAnswer(1.5, RECEIPT, {"token_id:7": -0.25, "token_id:9": -2.0})


def test_an_engine_that_tells_of_no_tokens_has_no_distribution() -> None:
    lines = (chunk_of(choices=[{"delta": {"content": "x"}, "logprobs": None}]), RECEIPT_CHUNK, DONE)
    assert answer_in(lines).top == {}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ((token_chunk(("a", -0.5)), RECEIPT_CHUNK), "before the answer was complete"),
        ((RECEIPT_CHUNK, DONE), "before the answer was complete"),
        ((token_chunk(("a", -0.5)), DONE), "without a receipt"),
        ((chunk_of(error={"message": "no worker"}),), "no worker"),
        ((b"data: {\n",), "not a chunk"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(lines: Sequence[bytes], reason: str) -> None:
    with pytest.raises(BenchError, match=reason):
        answer_in(lines)


def test_a_request_names_its_worker_and_asks_for_the_distribution() -> None:
    prompt = MarkedPrompt((5, 6, 7), ((0, 2),))
    body: dict[str, Any] = msgspec.json.decode(chat_body("m", prompt, WorkerId(2**64 - 1)))
    assert body["nvext"] == {
        "token_data": [5, 6, 7],
        "prefill_worker_id": 2**64 - 1,
        "annotations": ["nebula.spans=[[0,2]]"],
        "extra_fields": ["engine_data"],
    }
    assert (body["logprobs"], body["top_logprobs"], body["return_tokens_as_token_ids"]) == (True, 20, True)


# ---- fetched passages ----


def test_other_hits_than_expected_are_an_error_with_the_reason() -> None:
    receipt = receipt_of([(1, FETCH, COMPUTE)], fallback=FallbackReason.LATE)
    check_hits(receipt, fetched_tokens=0, local_tokens=0)
    with pytest.raises(BenchError, match="not 0, 0 and 10: late"):
        check_hits(receipt, fetched_tokens=10, local_tokens=0)
    with pytest.raises(BenchError, match=r"32 were hits by prefix"):
        check_hits(receipt_of(prefix_hit_tokens=32), fetched_tokens=0, local_tokens=0)


def turn_of(fetched_s: float, computed_s: float, other: float = -0.5) -> FetchTurn:
    return FetchTurn(
        fetched=answer_of(fetched_s, top={"a": other}), local=answer_of(0.5), computed=answer_of(computed_s)
    )


def joined(*pairs: JoinedPair) -> JoinedPairs:
    return JoinedPairs(pairs, num_in_front=3)


ONE_EACH = JoinedPair(
    answer_of(4.0, receipt_of([(1, COMPUTE, COMPUTE), (2, COMPUTE_AT, COMPUTE_AT)])),
    answer_of(6.0, receipt_of([(2, JOIN, JOIN), (1, JOIN, JOIN)])),
)
TWICE = JoinedPair(
    answer_of(4.0, receipt_of([(1, COMPUTE, COMPUTE)])), answer_of(5.0, receipt_of([(1, JOIN, COMPUTE)]))
)


def figures_of(*turns: FetchTurn) -> FetchFigures:
    return FetchFigures(FetchTurns(turns, 4000, 3900), joined(ONE_EACH), joined(ONE_EACH, TWICE))


def test_the_rows_hold_medians_to_their_bars() -> None:
    figures = figures_of(turn_of(1.0, 4.0), turn_of(2.0, 5.0), turn_of(9.0, 8.0))
    rows = {row.id: row for row in fetch_measurements(figures)}
    # 2 s against 5 s.
    assert (rows["fetch_ttft_ratio"].value, rows["fetch_ttft_ratio"].ok) == (0.4, False)
    assert (rows["fetch_kl"].value, rows["fetch_kl"].ok) == (0.0, True)
    assert (rows["joined_computations"].value, rows["joined_computations"].ok) == (1, True)
    assert (rows["joined_computations_sim"].value, rows["joined_computations_sim"].ok) == (2, False)
    assert (rows["fetch_ttft_s"].value, rows["fetch_computed_ttft_s"].value) == (2.0, 5.0)


def test_one_turn_with_another_distribution_misses_the_bar() -> None:
    figures = figures_of(turn_of(1.0, 4.0), turn_of(1.0, 4.0, other=-0.6))
    row = next(row for row in fetch_measurements(figures) if row.id == "fetch_kl")
    assert row.value == figures.fetched.turns[1].divergence_nats > 0.0
    assert not row.ok
    assert figures.fetched.mean_divergence_nats == pytest.approx(row.value / 2)


def test_the_tables_show_times_and_computations() -> None:
    page = fetch_markdown(figures_of(turn_of(1.0, 4.0), turn_of(2.0, 5.0), turn_of(9.0, 8.0)))
    assert "| fetched from another worker | 2.00 | 1.00 | 9.00 | 0.40 | 0.25 |" in page
    assert "| new, computed | 5.00 | 4.00 | 8.00 | 1.00 | 0.25 |" in page
    assert "0 nats at most, 0 in the mean" in page
    assert "| `vllm` | 1 | 3 | 1 | 2 | 4.00 | 6.00 |" in page
    # The fewest joined passages, the most computations, the median of 6 and 5 seconds.
    assert "| `sim` | 2 | 3 | 2 | 0 | 4.00 | 5.50 |" in page


# ---- joined passages ----


def test_what_a_helper_computes_counts_once_and_again_where_it_came_too_late() -> None:
    first, second = SegmentHash(bytes([1] * 16)), SegmentHash(bytes([2] * 16))
    in_time = receipt_of([(1, COMPUTE_AT, COMPUTE_AT), (2, COMPUTE, COMPUTE)])
    assert count_computations([in_time]) == {first: 1, second: 1}
    late = receipt_of([(1, COMPUTE_AT, COMPUTE), (2, FETCH, COMPUTE)])
    assert count_computations([in_time, late]) == {first: 3, second: 2}


def test_what_is_there_is_not_computed() -> None:
    assert set(count_computations([receipt_of([(1, LOCAL, LOCAL), (2, JOIN, LOCAL)])]).values()) == {0}


# ---- faults ----


def test_only_tests_that_passed_count() -> None:
    cases = (CountedTest("tests.a::test_kill[nixl]", True), CountedTest("tests.a::test_freeze", False))
    (row,) = faults_measurements(cases)
    assert (row.value, row.ok) == (1, False)
    assert faults_markdown(cases) == "1 of 2 tests of transfers and their faults pass.\n- `tests.a::test_freeze`\n"
    assert faults_measurements(cases[:1])[0].ok
    assert not faults_measurements(())[0].ok


def test_the_tests_of_faults_are_there() -> None:
    root = Path(__file__).parents[3]
    assert all((root / test).is_file() for test in FaultsSettings().tests)
