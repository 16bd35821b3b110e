"""A prefill worker's reply, as the router reads it."""

import pytest
from support.router_replies import a_receipt, prefill_chunk

from nebula_protocol.ids import WorkerId
from nebula_router.errors import WorkerRefusedError
from nebula_router.ports import JsonObject
from nebula_router.prefilled import Prefilled

WORKER = WorkerId(1)


def refusal_of(chunk: JsonObject) -> str:
    with pytest.raises(WorkerRefusedError) as refused:
        Prefilled.read(WORKER, chunk)
    assert refused.value.worker_id == WORKER
    return refused.value.reason


def test_the_receipt_is_read_and_the_chunk_is_kept_as_it_came() -> None:
    receipt = a_receipt(invalid_hit_tokens=3)
    chunk = prefill_chunk(receipt, [7]) | {"of a later Dynamo": {"a": 1}}
    before = dict(chunk)
    prefilled = Prefilled.read(WORKER, chunk)
    assert prefilled.handover.receipt == receipt
    assert prefilled.chunk == before


def test_a_reply_without_a_handover_is_a_refusal() -> None:
    assert refusal_of({"token_ids": [7]}) == "its prefill reply has no disaggregated_params"
    assert refusal_of({"token_ids": [7], "disaggregated_params": {}}).startswith("its handover cannot be read: ")
    params = {"nebula_handover": {"version": 1}}
    assert refusal_of({"token_ids": [7], "disaggregated_params": params}).startswith(
        "its handover cannot be read: not a Handover: "
    )
