"""The receipt: what the worker really did for a request. It comes back with the prefill reply."""

from enum import StrEnum

import msgspec

from nebula_protocol.ids import EventId, Origin, RequestId, SegmentHash, WorkerEpoch, WorkerWithDpRank
from nebula_protocol.plan import Source
from nebula_protocol.subjects import Topic

RECEIPT_KEY = "nebula_receipt"
"""Key inside `engine_data` and inside the prefill reply's `disaggregated_params`."""


class FallbackReason(StrEnum):
    """Why a worker computed a segment that was planned to come from somewhere."""

    NOT_THERE = "not_there"
    """The holder said no: evicted, unknown, or its tokens differ. This is the invalid hit."""
    SOURCE_GONE = "source_gone"
    LATE = "late"
    VETO = "veto"
    """The worker saw that computing is faster."""
    TOKENS_DIFFER = "tokens_differ"
    DOMAIN_DIFFERS = "domain_differs"
    DAMAGED = "damaged"
    """What arrived is not what was sent."""
    NO_ROOM = "no_room"
    """The home's store is full of entries in use."""


class SegmentOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one segment of the plan (or of the worker's own cut, where no plan came)."""

    start: int
    end: int
    segment_hash: SegmentHash
    planned: Source
    done: Source
    """LOCAL, FETCH, JOIN and COMPUTE_AT: its KV was loaded. COMPUTE: computed in this request."""
    prefix_tokens: int = 0
    """Leading tokens of the segment that the prefix hit already covered."""
    recomputed_tokens: int = 0
    fallback: FallbackReason | None = None
    origin: Origin | None = None
    """Of the KV that was loaded."""
    stored: bool = False
    """Whether this worker's store keeps it now."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of the worker's own clock; they add up to `total_s`."""

    queue_s: float
    """Ready to run, but other requests had the engine."""
    wait_s: float
    """Waiting for remote segments while not runnable."""
    compute_s: float
    """In steps, from the first to the last that carried the request."""
    total_s: float


class StepWork(msgspec.Struct, frozen=True, kw_only=True):
    """The compute that the request put into engine steps, for calibrating the router's estimate."""

    computed_tokens: int
    attention_pairs: float
    num_steps: int
    step_tokens: int
    """All tokens of those steps, of every request in them."""
    step_pairs: float
    step_s: float
    """Duration of those steps together."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
    request_id: RequestId
    worker: WorkerWithDpRank
    epoch: WorkerEpoch
    prompt_tokens: int
    prefix_hit_tokens: int
    """KV found by prefix, in either tier."""
    segment_hit_tokens: int
    """Tokens of segments whose KV was loaded, local or fetched, prefix excluded."""
    local_hit_tokens: int
    fetched_hit_tokens: int
    """local + fetched = segment_hit_tokens."""
    recomputed_tokens: int
    """Of the segment hits, those computed again by fusion."""
    computed_tokens: int
    """prompt = prefix_hit + segment_hit + computed."""
    invalid_hit_tokens: int
    """Planned as a hit, not there when wanted."""
    segments: tuple[SegmentOutcome, ...]
    timing: Timing
    work: StepWork
    last_event_ids: dict[Topic, EventId]
    """Per topic, the last event this worker had published when it made the receipt."""
