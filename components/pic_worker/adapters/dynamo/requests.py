"""Reads what Dynamo's request plane brings, and forms what it takes back."""

import math
from collections.abc import Mapping, Sequence
from typing import cast

from nebula_protocol.codec import from_plain, to_plain
from nebula_protocol.errors import DecodeError, ProtocolError, UnsupportedVersionError
from nebula_protocol.handover import HANDOVER_KEY, Handover, Sampled, TopToken
from nebula_protocol.ids import WorkerId
from nebula_protocol.plan import HELPER_TASK_KEY, PLAN_KEY, PLAN_VERSION, HelperTask, Plan, check_plan_version
from nebula_protocol.receipt import RECEIPT_KEY
from nebula_protocol.request_fields import check_fields, check_token_ids
from nebula_protocol.request_options import read_options
from nebula_protocol.tokens import as_token_array
from pic_worker.errors import BadWorkError
from pic_worker.work import WorkRequest

JsonObject = dict[str, object]


def read_work(request: Mapping[str, object], vocabulary_tokens: int | None = None) -> WorkRequest:
    """
    Args:
        vocabulary_tokens: The model's token ids are below it; None where it is not known.

    Raises:
        BadWorkError: no tokens, a plan, task or annotation that cannot be understood, or what no worker offers.
    """
    token_ids = request.get("token_ids")
    if not isinstance(token_ids, Sequence) or not token_ids:
        raise BadWorkError("the request has no tokens")
    extra_args = _mapping(request.get("extra_args"))
    plan, task = extra_args.get(PLAN_KEY), extra_args.get(HELPER_TASK_KEY)
    try:
        # The router has checked them already, but there is not always one.
        check_fields(request)
        tokens = as_token_array(cast("Sequence[int]", token_ids))
        check_token_ids(request, tokens, vocabulary_tokens)
        return WorkRequest(
            tokens=tokens,
            max_tokens=_max_tokens(request),
            options=read_options(request),
            plan=None if plan is None else _read_plan(plan),
            helper_task=None if task is None else _read_helper_task(task),
            body=request,
        )
    except ProtocolError as error:
        raise BadWorkError(str(error)) from error


def read_handover(request: Mapping[str, object]) -> Handover | None:
    """The handover inside a decode request; None where no prefill worker was asked.

    Raises:
        BadWorkError: it cannot be understood.
    """
    params = _mapping(_mapping(request.get("prefill_result")).get("disaggregated_params"))
    if HANDOVER_KEY not in params:
        return None
    try:
        return from_plain(params[HANDOVER_KEY], Handover)
    except DecodeError as error:
        raise BadWorkError(f"the handover cannot be read: {error}") from error


def probe_chunk() -> JsonObject:
    """The reply to Dynamo's health check: the process answers, the engine is left alone."""
    return {"token_ids": [0], "index": 0, "finish_reason": "length", "completion_usage": usage(1, 1)}


def prefill_chunk(handover: Handover) -> JsonObject:
    """The one chunk of a prefill reply."""
    first = handover.first or Sampled(())
    return {
        **_sampled(first),
        "completion_usage": usage(handover.prompt_tokens, len(first.token_ids)),
        "disaggregated_params": {HANDOVER_KEY: to_plain(handover)},
    }


def helper_chunk() -> JsonObject:
    return {"token_ids": [], "index": 0, "finish_reason": "stop", "completion_usage": usage(0, 0)}


def decode_chunk(
    sampled: Sampled, *, num_prompt_tokens: int, num_sent: int, handover: Handover | None, worker_id: WorkerId
) -> JsonObject:
    """A piece of the answer. The first carries the receipt and who served the request, behind any router.

    Args:
        num_prompt_tokens: Of the request as this worker got it.
        num_sent: Tokens of the answer with these.
    """
    chunk = _sampled(sampled)
    if handover is not None and num_sent == len(sampled.token_ids):
        chunk["engine_data"] = {
            RECEIPT_KEY: to_plain(handover.receipt),
            "worker_id": {"prefill_worker_id": handover.prefill_worker_id, "decode_worker_id": worker_id},
        }
    if sampled.finish_reason is not None:
        # Of segments the receipt tells: they are no cached prefix.
        cached = 0 if handover is None else handover.receipt.prefix_hit_tokens
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        chunk["completion_usage"] = {**usage(num_prompt_tokens, num_sent), **details}
    return chunk


def _sampled(sampled: Sampled) -> JsonObject:
    chunk: JsonObject = {"token_ids": list(sampled.token_ids), "index": 0}
    if sampled.finish_reason is not None:
        chunk["finish_reason"] = sampled.finish_reason
    if sampled.logprobs:
        chunk["log_probs"] = list(sampled.logprobs)
    if sampled.top_tokens:
        chunk["top_logprobs"] = [[_top_token(top) for top in place] for place in sampled.top_tokens]
    return chunk


def _top_token(top: TopToken) -> JsonObject:
    return {
        "rank": top.rank,
        "token_id": top.token_id,
        "token": top.text,
        "logprob": top.logprob,
    }


def usage(num_prompt_tokens: int, num_completion_tokens: int) -> JsonObject:
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
    }


def _read_plan(value: object) -> Plan:
    plan = check_plan_version(from_plain(value, Plan))
    # The engine keeps time with it: no clock survives a negative or endless wait.
    if not 0 <= plan.wait_budget_s < math.inf:
        raise BadWorkError(f"a plan cannot wait {plan.wait_budget_s} s")
    return plan


def _read_helper_task(value: object) -> HelperTask:
    task = from_plain(value, HelperTask)
    if task.version != PLAN_VERSION:
        raise UnsupportedVersionError("helper task", task.version, PLAN_VERSION)
    return task


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


def _max_tokens(request: Mapping[str, object]) -> int | None:
    value = _mapping(request.get("stop_conditions")).get("max_tokens")
    return value if isinstance(value, int) else None
