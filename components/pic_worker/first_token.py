"""The answer's first token: made by prefill, said by decode before the prompt's KV has come."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from msgspec import structs

from nebula_protocol.handover import Handover, Sampled
from pic_worker.work import WorkRequest

_LENGTH = "length"
"""What a prefill worker, which makes one token, says of an answer that goes on."""


@dataclass(frozen=True, slots=True)
class Begun:
    """An answer that a decode worker takes over."""

    first: Sampled | None
    """To be said at once. None where the decode worker has to make the first token itself."""
    rest: WorkRequest | None
    """The request behind it; None where the answer ends with the first token."""


def begin_answer(work: WorkRequest, handover: Handover | None) -> Begun:
    """What of the answer is there, and what is left to make.

    A grammar must see every token of the answer, so with guided decoding the decode worker samples the first one again,
    from the same KV, unless the answer ends with it.
    """
    if handover is None or handover.first is None:
        return Begun(None, work)
    first = handover.first
    if first.finish_reason not in (None, _LENGTH):
        return Begun(first, None)
    if work.max_tokens is not None and work.max_tokens <= len(first.token_ids):
        return Begun(structs.replace(first, finish_reason=_LENGTH), None)
    if _is_guided(work.body):
        return Begun(None, work)
    return Begun(structs.replace(first, finish_reason=None), _behind(work, first))


def _behind(work: WorkRequest, first: Sampled) -> WorkRequest:
    num_said = len(first.token_ids)
    conditions = _mapping(work.body.get("stop_conditions"))
    min_tokens = conditions.get("min_tokens")
    body = work.body
    if isinstance(min_tokens, int):
        body = {**body, "stop_conditions": {**conditions, "min_tokens": max(0, min_tokens - num_said)}}
    return replace(
        work,
        tokens=np.concatenate((work.tokens, np.asarray(first.token_ids, dtype=work.tokens.dtype))),
        max_tokens=None if work.max_tokens is None else work.max_tokens - num_said,
        body=body,
    )


def _is_guided(body: Mapping[str, object]) -> bool:
    return _mapping(body.get("sampling_options")).get("guided_decoding") is not None


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}
