"""What Dynamo's request plane brings, read and checked, and what goes back."""

import math
from collections.abc import Mapping
from typing import cast

import pytest
from msgspec import structs
from support.engine_world import EngineWorld, passage, unplanned

from nebula_protocol.codec import from_plain, to_plain
from nebula_protocol.handover import HANDOVER_KEY, Handover, Sampled, TopToken
from nebula_protocol.hashing import hash_segment
from nebula_protocol.ids import DomainId, RequestId, WorkerEpoch, WorkerId, WorkerWithDpRank
from nebula_protocol.plan import (
    HELPER_TASK_KEY,
    PLAN_KEY,
    PLAN_VERSION,
    Estimate,
    HelperTask,
    Plan,
    SegmentPlan,
    Source,
)
from nebula_protocol.receipt import RECEIPT_KEY, Receipt
from pic_worker.adapters.dynamo.requests import (
    decode_chunk,
    helper_chunk,
    prefill_chunk,
    probe_chunk,
    read_handover,
    read_work,
)
from pic_worker.errors import BadWorkError

DECODER = WorkerId(2**63 + 9)
SEGMENT = passage(1, 20)
PLAN = Plan(
    request_id=RequestId("r"),
    domain_id=DomainId("d"),
    target=WorkerWithDpRank(WorkerId(2**63 + 5)),
    segments=(
        SegmentPlan(
            start=4,
            end=24,
            segment_hash=hash_segment(SEGMENT),
            source=Source.FETCH,
            from_worker=WorkerWithDpRank(WorkerId(3)),
        ),
    ),
    prefix_hit_tokens=0,
    wait_budget_s=0.5,
    estimate=Estimate(free_in_s=0.0, arrive_in_s=0.1, compute_s=0.2, completion_s=0.3),
)
TASK = HelperTask(for_request=RequestId("r"), domain_id=DomainId("d"), segments=((hash_segment(SEGMENT), 20),))


def receipt() -> Receipt:
    return EngineWorld().serve(unplanned("r", passage(0, 12)))


def handover() -> Handover:
    return Handover(
        request_id=RequestId("r"),
        prefill_worker_id=WorkerId(2**63 + 5),
        epoch=WorkerEpoch(7),
        prompt_tokens=12,
        kv_bytes=120,
        receipt=receipt(),
        first=Sampled((41,), "length"),
    )


def decoded(sampled: Sampled, num_sent: int, handed_over: Handover | None) -> dict[str, object]:
    """A piece of the answer to a prompt of 12 tokens."""
    return decode_chunk(sampled, num_prompt_tokens=12, num_sent=num_sent, handover=handed_over, worker_id=DECODER)


def work(**fields: object) -> dict[str, object]:
    return {"token_ids": [5, 6, 7], **fields}


def with_plan(plan: object) -> dict[str, object]:
    return work(extra_args={PLAN_KEY: plan})


def test_a_request_without_a_plan_is_tokens_and_options() -> None:
    read = read_work(
        work(
            stop_conditions={"max_tokens": 9},
            annotations=["nebula.spans=[[0,2]]", "nebula.pic=off", "nebula.salt=acme", "llm_metrics"],
        )
    )
    assert read.tokens.tolist() == [5, 6, 7]
    assert (read.max_tokens, read.plan, read.helper_task) == (9, None, None)
    assert (read.options.spans, read.options.pic, read.options.cache_salt) == (((0, 2),), False, "acme")


@pytest.mark.parametrize("field", ["extra_args", "annotations", "stop_conditions"])
def test_fields_that_are_null_are_as_good_as_absent(field: str) -> None:
    read = read_work(work(**{field: None}))
    assert (read.plan, read.helper_task, read.max_tokens, read.options.spans) == (None, None, None, ())


def test_a_plan_and_a_task_come_back_as_they_were_sent() -> None:
    assert read_work(with_plan(to_plain(PLAN))).plan == PLAN
    assert read_work(work(extra_args={HELPER_TASK_KEY: to_plain(TASK)})).helper_task == TASK


@pytest.mark.parametrize(
    "token_ids", [None, [], "abc", b"abc", {"0": 1}, 7, [1, -1], [2**32], [1.5], [None], ["5"], [[1]]], ids=repr
)
def test_token_ids_that_are_none_are_refused(token_ids: object) -> None:
    with pytest.raises(BadWorkError):
        read_work({"token_ids": token_ids})


def test_a_request_without_token_ids_is_refused() -> None:
    with pytest.raises(BadWorkError):
        read_work({})


@pytest.mark.parametrize("version", [PLAN_VERSION - 1, PLAN_VERSION + 1])
def test_a_plan_or_a_task_of_another_version_is_refused_by_its_name(version: int) -> None:
    with pytest.raises(BadWorkError, match=f"plan has version {version}"):
        read_work(with_plan(to_plain(structs.replace(PLAN, version=version))))
    with pytest.raises(BadWorkError, match=f"helper task has version {version}"):
        read_work(work(extra_args={HELPER_TASK_KEY: to_plain(structs.replace(TASK, version=version))}))


@pytest.mark.parametrize(
    "plan",
    [
        "plan",
        [],
        {},
        {**structs.asdict(PLAN), "segments": "none"},
        {**structs.asdict(PLAN), "segments": [{"start": 0}]},
        {**structs.asdict(PLAN), "target": {"worker_id": "one"}},
        {**structs.asdict(PLAN), "wait_budget_s": None},
    ],
    ids=["text", "list", "empty", "segments are text", "half a segment", "a worker's name", "no wait"],
)
@pytest.mark.parametrize("key", [PLAN_KEY, HELPER_TASK_KEY])
def test_a_malformed_plan_or_task_is_refused(key: str, plan: object) -> None:
    with pytest.raises(BadWorkError):
        read_work(work(extra_args={key: plan}))


@pytest.mark.parametrize("wait_budget_s", [-0.001, math.inf, -math.inf, math.nan])
def test_a_plan_that_no_clock_can_keep_is_refused(wait_budget_s: float) -> None:
    with pytest.raises(BadWorkError):
        read_work(with_plan(to_plain(structs.replace(PLAN, wait_budget_s=wait_budget_s))))


@pytest.mark.parametrize(
    "annotations",
    [
        ["nebula.spans=[[0,2]"],
        ["nebula.spans=[[0]]"],
        ["nebula.pic=maybe"],
        ["nebula.salt="],
        ["nebula.colour=red"],
        ["nebula.pic=on", "nebula.pic=on"],
        [5],
        [None],
        "nebula.pic=on",
        {"nebula.pic": "on"},
    ],
    ids=repr,
)
def test_malformed_annotations_are_refused(annotations: object) -> None:
    with pytest.raises(BadWorkError):
        read_work(work(annotations=annotations))


def decode_request(params: object) -> Mapping[str, object]:
    return work(prefill_result={"disaggregated_params": params})


def test_a_handover_passes_from_the_prefill_reply_to_the_decode_request() -> None:
    sent = handover()
    reply = prefill_chunk(sent)
    assert (reply["token_ids"], reply["finish_reason"]) == ([41], "length")
    assert reply["completion_usage"] == {"prompt_tokens": 12, "completion_tokens": 1, "total_tokens": 13}
    assert read_handover(decode_request(reply["disaggregated_params"])) == sent


def test_the_first_token_passes_with_its_probabilities() -> None:
    top = (TopToken(41, " a", -0.5, 1), TopToken(9, " b", -1.5, 2))
    sent = structs.replace(handover(), first=Sampled((41,), "stop", (-0.5,), (top,)))
    reply = prefill_chunk(sent)
    assert reply["log_probs"] == [-0.5]
    assert read_handover(decode_request(reply["disaggregated_params"])) == sent


def test_a_prefill_reply_without_a_token_has_none() -> None:
    reply = prefill_chunk(structs.replace(handover(), first=None))
    assert reply["token_ids"] == []
    assert reply["completion_usage"] == {"prompt_tokens": 12, "completion_tokens": 0, "total_tokens": 12}


@pytest.mark.parametrize("params", [None, {}, [], {"another_engine": {}}], ids=repr)
def test_a_request_that_no_prefill_worker_has_seen_has_no_handover(params: object) -> None:
    assert read_handover(decode_request(params)) is None
    assert read_handover(work(prefill_result=params)) is None
    assert read_handover(work()) is None


@pytest.mark.parametrize("params", [None, {}, "x", {"request_id": "r"}], ids=repr)
def test_a_malformed_handover_is_refused(params: object) -> None:
    with pytest.raises(BadWorkError, match="handover cannot be read"):
        read_handover(decode_request({HANDOVER_KEY: params}))


def test_a_handover_with_half_a_token_is_refused() -> None:
    sent = structs.replace(handover(), first=None)
    plain = {**cast("dict[str, object]", to_plain(sent)), "first": {"finish_reason": "length"}}
    with pytest.raises(BadWorkError, match="token_ids"):
        read_handover(decode_request({HANDOVER_KEY: plain}))


def test_the_first_piece_tells_the_receipt_and_who_served_and_no_other_does() -> None:
    first, second = decoded(Sampled((7, 8)), 2, handover()), decoded(Sampled((9,)), 3, handover())
    data = first["engine_data"]
    assert isinstance(data, dict)
    assert from_plain(data[RECEIPT_KEY], Receipt) == receipt()
    assert data["worker_id"] == {"prefill_worker_id": 2**63 + 5, "decode_worker_id": 2**63 + 9}
    assert (first["token_ids"], second["token_ids"]) == ([7, 8], [9])
    assert "engine_data" not in second
    for chunk in (first, second):
        assert not {"finish_reason", "completion_usage"} & chunk.keys()


def test_the_last_piece_tells_the_usage_with_the_prefix_that_was_cached() -> None:
    hit = structs.replace(handover(), receipt=structs.replace(receipt(), prefix_hit_tokens=8))
    last = decoded(Sampled((8,), "length"), 2, hit)
    assert last["finish_reason"] == "length"
    assert last["completion_usage"] == {
        "prompt_tokens": 12,
        "completion_tokens": 2,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 8},
    }


def test_an_answer_of_one_piece_tells_everything_with_it() -> None:
    only = decoded(Sampled((8,), "stop"), 1, handover())
    assert {"engine_data", "completion_usage", "finish_reason"} <= only.keys()


def test_without_a_handover_nothing_is_cached_and_nobody_else_has_served() -> None:
    only = decoded(Sampled((8,), "length"), 1, None)
    assert "engine_data" not in only
    assert only["completion_usage"] == {
        "prompt_tokens": 12,
        "completion_tokens": 1,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_probabilities_come_with_their_tokens() -> None:
    top = (TopToken(7, " a", -0.5, 1), TopToken(9, " b", -1.5, 2))
    chunk = decoded(Sampled((7,), None, (-0.5,), (top,)), 1, None)
    assert chunk["log_probs"] == [-0.5]
    assert chunk["top_logprobs"] == [
        [
            {"rank": 1, "token_id": 7, "token": " a", "logprob": -0.5},
            {"rank": 2, "token_id": 9, "token": " b", "logprob": -1.5},
        ]
    ]


def test_the_handover_brings_the_engines_own_words_unchanged() -> None:
    params: dict[str, object] = {"remote_block_ids": [[1, 2], []], "remote_host": "h", "remote_port": 5600}
    sent = structs.replace(handover(), kv_transfer_params=params, lineage="exact/")
    reply = prefill_chunk(sent)
    assert read_handover(decode_request(reply["disaggregated_params"])) == sent


def test_replies_to_helper_work_and_probes_end_their_streams() -> None:
    assert (helper_chunk()["token_ids"], helper_chunk()["finish_reason"]) == ([], "stop")
    assert probe_chunk()["finish_reason"] == "length"


def test_a_worker_reads_the_tenant_where_the_router_does() -> None:
    assert read_work({"token_ids": [1], "routing": {"cache_salt": "acme"}}).options.cache_salt == "acme"
    with pytest.raises(BadWorkError, match="name different tenants"):
        read_work({"token_ids": [1], "routing": {"cache_salt": "a"}, "annotations": ["nebula.salt=b"]})


def test_a_worker_without_a_router_before_it_refuses_what_is_not_offered() -> None:
    with pytest.raises(BadWorkError, match="a request gets one answer"):
        read_work({"token_ids": [1], "sampling_options": {"n": 2}})
    with pytest.raises(BadWorkError, match="outside the vocabulary: 5"):
        read_work({"token_ids": [1, 5]}, 5)
    assert read_work({"token_ids": [1, 5]}, 6).tokens.tolist() == [1, 5]
