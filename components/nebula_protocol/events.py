"""Events on NATS: Dynamo's envelope and prefix-block events, and Nebula's sibling topics."""

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


# ---- decisions ----


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One worker that was considered, with the best estimate on it."""

    worker: WorkerWithDpRank
    estimate: Estimate
    prefix_hit_tokens: int
    segment_hit_tokens: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A decisions payload: why a request went where it went. Holds no token ids and no text."""

    version: int = 1
    request_id: RequestId
    plan: Plan
    prompt_tokens: int
    candidates: tuple[Candidate, ...]
    decision_us: float
    attempt: int = 1


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
