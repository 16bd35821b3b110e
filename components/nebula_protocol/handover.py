"""What a prefill worker hands to the decode worker, inside the reply's `disaggregated_params`."""

import msgspec

from nebula_protocol.ids import RequestId, WorkerEpoch, WorkerId
from nebula_protocol.receipt import Receipt


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """Enough to pull the prompt's KV, and the receipt, which thus reaches the client behind any router."""

    version: int = 1
    request_id: RequestId
    prefill_worker_id: WorkerId
    epoch: WorkerEpoch
    prompt_tokens: int
    """With those that are the answer's beginning."""
    answered_tokens: int = 0
    """Tokens at the prompt's end that are the answer's beginning."""
    kv_bytes: int
    receipt: Receipt
    lineage: str = ""
    """Under which the prompt's prefix blocks are cached: see `nebula_protocol.lineage`."""
    kv_transfer_params: dict[str, object] | None = None
    """What the engine of the decode worker needs to fetch the KV, in that engine's own words. None where it needs no
    more than this record."""


HANDOVER_KEY = "nebula_handover"
"""Key inside `disaggregated_params`."""

PREFILL_GONE = "prefill-kv-gone"
"""A decode worker's refusal begins with this when it cannot pull the prompt's KV; then the prompt is prefilled anew."""
