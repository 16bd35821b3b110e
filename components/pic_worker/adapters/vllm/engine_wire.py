"""What passes between the worker's process and the connector in the engine's process.

A request carries its `PrefillOrder` in `kv_transfer_params[ORDER_KEY]` (as plain data). Back come `EngineNews` over one
ordered local socket; the other way `EngineControl` and questions about the store over another, which takes their
answers back. Both are MessagePack.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from nebula_protocol.events import PicEventData
from nebula_protocol.fusion import Fusion
from nebula_protocol.ids import DomainId, Origin, RequestId, SegmentHash
from nebula_protocol.plan import SegmentPlan

ORDER_KEY = "nebula"


class PrefillKind(StrEnum):
    PROMPT = "prompt"
    ALONE = "alone"
    """One segment computed by itself at position 0, to be kept; nothing is reused."""


class PrefillOrder(msgspec.Struct, frozen=True, kw_only=True):
    request_id: RequestId
    """The name by which the news calls it: that of the vLLM request."""
    kind: PrefillKind = PrefillKind.PROMPT
    domain_id: DomainId
    """Of the worker and the request's tenant: part of each segment's key."""
    lineage: str
    """The salt of the request's prefix blocks; vLLM has it as `cache_salt`."""
    segments: tuple[SegmentPlan, ...] = ()
    """Ascending, disjoint, hashes fitting the tokens. Empty: neither reuse nor keep."""
    fusion: Fusion
    has_plan: bool = False
    may_reuse: bool = True
    """False: the plan was made for another domain; keep what is computed, reuse nothing."""


def transfer_params(order: PrefillOrder) -> dict[str, object]:
    """A request's `kv_transfer_params` that carry the order; other connectors' may be added."""
    return {ORDER_KEY: msgspec.to_builtins(order, builtin_types=(bytes,))}


def read_order(params: Mapping[str, object] | None) -> PrefillOrder | None:
    """The order in a request's `kv_transfer_params`; None where there is none.

    Raises:
        msgspec.ValidationError: there is one, of another shape.
    """
    found = params.get(ORDER_KEY) if params else None
    return None if found is None else msgspec.convert(found, PrefillOrder)


class SegmentFact(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one segment of the order, in the order's order."""

    segment_hash: SegmentHash
    start: int
    end: int
    loaded_tokens: int = 0
    """Tokens injected, the recomputed ones among them; the rest was prefix or computed."""
    prefix_tokens: int = 0
    recomputed_tokens: int = 0
    was_absent: bool = False
    """Not in the store when it was wanted."""
    tokens_differed: bool = False
    origin: Origin | None = None
    is_stored: bool = False


class PrefillFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Sent when the request has ended (also when aborted); in the news of the step that ended it, or before."""

    request_id: RequestId
    prompt_tokens: int
    device_prefix_tokens: int
    host_prefix_tokens: int
    """Prefix blocks that came back from the store."""
    segments: tuple[SegmentFact, ...]
    queued_s: float
    """From arrival in the engine to the first step that worked on it."""
    computed_tokens: int
    """In vLLM's own steps and in the connector's forward passes."""
    attention_pairs: float
    num_steps: int
    step_tokens: int
    step_pairs: float
    step_s: float
    is_whole: bool
    """The prompt was computed to its end."""


class StepFact(msgspec.Struct, frozen=True, kw_only=True):
    duration_s: float
    num_tokens: int
    recomputed_tokens: int


class EngineNews(msgspec.Struct, frozen=True, kw_only=True):
    """One step's news, in order. Prefix blocks are named as vLLM's own KV events name them."""

    events: tuple[PicEventData, ...] = ()
    finished: tuple[PrefillFacts, ...] = ()
    step: StepFact | None = None


class SplitControl(msgspec.Struct, frozen=True, kw_only=True, tag="split"):
    prefix_ratio: float


class ClearControl(msgspec.Struct, frozen=True, kw_only=True, tag="clear"):
    """Drop every entry of the store that is not in use."""


EngineControl = SplitControl | ClearControl


class ConnectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """In `kv_connector_extra_config["nebula"]`, as plain data."""

    news_url: str
    """ipc:// address; the worker's process binds a PULL socket, the connector connects a PUSH socket."""
    control_url: str
    """ipc:// address; the worker's process binds a DEALER socket, the connector connects another."""
    store_capacity_tokens: int
    prefix_ratio: float
    page_tokens: int = 16
    """Tokens of one arena page; divides the block size."""
    max_recomputed_tokens_per_step: int = 2048
    """Bound of the connector's own forward passes in one step, over all requests."""
    pic: bool = True
    selects: bool = True
    """Requests may ask for CacheBlend. Start is refused where the model's first layers cannot be run alone for it."""
