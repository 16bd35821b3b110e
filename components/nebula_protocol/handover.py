"""What a prefill worker hands to the decode worker, inside the reply's `disaggregated_params`."""

import msgspec

from nebula_protocol.ids import RequestId, WorkerEpoch, WorkerId
from nebula_protocol.receipt import Receipt


class TopToken(msgspec.Struct, frozen=True):
    token_id: int
    text: str
    logprob: float
    rank: int


class Sampled(msgspec.Struct, frozen=True):
    """Tokens of an answer, next to each other."""

    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    """Why the answer ends with these tokens, in Dynamo's words; None while it goes on."""
    logprobs: tuple[float, ...] = ()
    """Of these tokens; empty where nobody asked."""
    top_tokens: tuple[tuple[TopToken, ...], ...] = ()
    """The likeliest tokens at the place of each; empty where nobody asked."""


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """Enough to say the first token at once and to pull the prompt's KV, and the receipt, which thus reaches the client
    behind any router."""

    version: int = 2
    request_id: RequestId
    prefill_worker_id: WorkerId
    epoch: WorkerEpoch
    prompt_tokens: int
    kv_bytes: int
    receipt: Receipt
    first: Sampled | None = None
    """The answer's first token. Its finish reason is `length` unless the answer ends with it: prefill makes one."""
    lineage: str = ""
    """Under which the prompt's prefix blocks are cached: see `nebula_protocol.lineage`."""
    kv_transfer_params: dict[str, object] | None = None
    """What the engine of the decode worker needs to fetch the KV, in that engine's own words. None where it needs no
    more than this record."""


HANDOVER_KEY = "nebula_handover"
"""Key inside `disaggregated_params`."""
