"""Events on NATS: Dynamo's envelope and prefix-block events, and Nebula's sibling topics."""

from enum import StrEnum
from typing import Literal

import msgspec

from nebula_protocol.ids import (
    BlockHash,
    DomainId,
    DpRank,
    EngineBlockHash,
    EventId,
    Origin,
    RemovalReason,
    RequestId,
    SegmentHash,
    Tier,
    WorkerEpoch,
    WorkerId,
    WorkerWithDpRank,
)
from nebula_protocol.plan import Estimate, Plan


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """What every message on an event subject is wrapped in (Dynamo's own format)."""

    publisher_id: int
    sequence: int
    published_at: int
    """Milliseconds since 1970."""
    topic: str
    payload: bytes
    """MessagePack again; its type follows from the topic."""


# ---- kv-events: Dynamo's own schema ----


class StoredBlock(msgspec.Struct, frozen=True, kw_only=True):
    block_hash: int
    tokens_hash: int


class BlocksStored(msgspec.Struct, frozen=True, kw_only=True):
    parent_hash: int | None = None
    start_position: int | None = None
    blocks: tuple[StoredBlock, ...]


class BlocksRemoved(msgspec.Struct, frozen=True, kw_only=True):
    block_hashes: tuple[int, ...]


class KvEventData(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one is set; Dynamo's third form, the bare text "cleared", stands beside this type."""

    stored: BlocksStored | None = None
    removed: BlocksRemoved | None = None


class KvEvent(msgspec.Struct, frozen=True, kw_only=True):
    event_id: EventId
    dp_rank: DpRank = DpRank(0)
    data: KvEventData | Literal["cleared"]


class WorkerKvEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One element of a kv-events payload, which is an array of these."""

    worker_id: WorkerId
    storage_tier: str = "device"
    event: KvEvent


# ---- pic-events ----


class SegmentStored(msgspec.Struct, frozen=True, kw_only=True, tag="segment_stored"):
    segment_hash: SegmentHash
    domain_id: DomainId
    num_tokens: int
    origin: Origin


class SegmentRemoved(msgspec.Struct, frozen=True, kw_only=True, tag="segment_removed"):
    segment_hash: SegmentHash
    domain_id: DomainId
    reason: RemovalReason


class HostBlocksStored(msgspec.Struct, frozen=True, kw_only=True, tag="host_blocks_stored"):
    """Prefix blocks that left the device tier for the store. Named as in the kv-events of the same worker."""

    block_hashes: tuple[EngineBlockHash, ...]


class HostBlocksRemoved(msgspec.Struct, frozen=True, kw_only=True, tag="host_blocks_removed"):
    block_hashes: tuple[EngineBlockHash, ...]
    reason: RemovalReason


class StoreCleared(msgspec.Struct, frozen=True, kw_only=True, tag="store_cleared"):
    """Everything in the store is gone, of both classes."""


PicEventData = SegmentStored | SegmentRemoved | HostBlocksStored | HostBlocksRemoved | StoreCleared


class PicEvent(msgspec.Struct, frozen=True, kw_only=True):
    event_id: EventId
    dp_rank: DpRank = DpRank(0)
    data: PicEventData


class WorkerPicEvents(msgspec.Struct, frozen=True, kw_only=True):
    """A pic-events payload: consecutive events of one worker process."""

    version: int = 1
    worker_id: WorkerId
    epoch: WorkerEpoch
    tier: Tier = Tier.HOST
    events: tuple[PicEvent, ...]


# ---- splits ----


class SplitVerdict(StrEnum):
    """What the router made of a window of requests."""

    MOVED = "moved"
    BEST_ALREADY = "best_already"
    """No split would save noticeably more."""
    NOT_SURE = "not_sure"
    """Another split would have saved more, but so little that it is not worth a move or may be chance."""


class SplitReview(msgspec.Struct, frozen=True, kw_only=True):
    """A splits payload: what a window of requests said about how the stores are divided.

    Ratios of a split are the share of each store for prefix blocks; those of time are shares of the time that all
    prefills of late would take without any reuse.
    """

    version: int = 1
    verdict: SplitVerdict
    from_prefix_ratio: float
    prefix_ratio: float
    """From now on; the same where nothing moved."""
    best_from_ratio: float
    best_to_ratio: float
    """The splits that save most, from this one to that one."""
    gain_ratio: float
    """What the best split would save more than the one before."""
    error_ratio: float
    """Standard error of the gain."""
    window_requests: int
    num_requests: int
    """Seen so far."""
    ghost_prefix_tokens: int
    """Computed in the window although some worker had had them as prefix blocks, until room was lacking."""
    ghost_segment_tokens: int
    """The same as segments. Tokens that either could have spared count for the class that lacked less room."""


class SplitNow(msgspec.Struct, frozen=True, kw_only=True):
    """How the stores are divided when a request is placed."""

    prefix_ratio: float
    last_review: SplitReview | None = None
    last_move: SplitReview | None = None


# ---- decisions ----


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One worker that was considered, with the best estimate on it."""

    worker: WorkerWithDpRank
    estimate: Estimate
    prefix_hit_tokens: int
    segment_hit_tokens: int
    """Behind the prefix hit, in segments that it has or would be brought; recomputed ones count, helpers' do not."""
    copied_tokens: int = 0
    """Of these, those that would be copied from other workers or awaited."""
    score_s: float | None = None
    """What is compared: the completion, and what the request costs others. None: not told."""


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A decisions payload: why a request went where it went. Holds no token ids and no text."""

    version: int = 1
    request_id: RequestId
    plan: Plan
    prompt_tokens: int
    candidates: tuple[Candidate, ...]
    """The best few, the chosen one first."""
    decision_us: float
    attempt: int = 1
    num_workers: int = 0
    """That the router knew; 0: not told."""
    is_bound: bool = False
    """Whether the client chose the worker."""
    split: SplitNow | None = None
    """None where the workers' own setting divides the stores."""
    unknown_segments: tuple[int, ...] = ()
    """Indices of the plan's segments of which no copy was known, stored or on its way. Others that are computed are
    computed on purpose."""


# ---- shared with the state records ----


class BlockEntry(msgspec.Struct, frozen=True, array_like=True):
    """One prefix block of a full state: parents come before children."""

    block_hash: EngineBlockHash
    parent_hash: EngineBlockHash | None
    tokens_hash: BlockHash
    tiers: int
    """Bit 0: device, bit 1: host."""


class SegmentEntry(msgspec.Struct, frozen=True, array_like=True):
    segment_hash: SegmentHash
    domain_id: DomainId
    num_tokens: int
    origin: Origin
