"""Requests between processes over NATS: full state, peer transfers, capacity control."""

import msgspec

from nebula_protocol.card import WorkerCard
from nebula_protocol.events import BlockEntry, SegmentEntry
from nebula_protocol.ids import DomainId, DpRank, EventId, Origin, RequestId, SegmentHash, WorkerEpoch, WorkerId
from nebula_protocol.subjects import Topic


class StateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a worker for all it holds. The answer is a series of `StateChunk` to the reply subject."""

    version: int = 1


class StateChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A part of one consistent snapshot; chunks of a reply share `snapshot_id` and come in order."""

    version: int = 1
    snapshot_id: int
    index: int
    last: bool
    card: WorkerCard
    dp_rank: DpRank = DpRank(0)
    last_event_ids: dict[Topic, EventId]
    """Per topic, the last event contained in the snapshot; -1 when none was published yet."""
    blocks: tuple[BlockEntry, ...] = ()
    segments: tuple[SegmentEntry, ...] = ()


class WantedSegment(msgspec.Struct, frozen=True, kw_only=True):
    segment_hash: SegmentHash
    num_tokens: int
    join: bool = False
    """Wait, within `wait_s`, when it is still being computed or is about to be."""


class FetchRequest(msgspec.Struct, frozen=True, kw_only=True, tag="fetch"):
    """Asks a peer for segments, all answered in one reply when the last is decided."""

    version: int = 1
    request_id: RequestId
    from_worker: WorkerId
    domain_id: DomainId
    wait_s: float
    segments: tuple[WantedSegment, ...]


class FetchedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """One answer. `token_bytes` is None when the peer does not have the segment; else what it was computed from."""

    segment_hash: SegmentHash
    token_bytes: bytes | None
    origin: Origin | None = None
    kv_bytes: int = 0


class FetchReply(msgspec.Struct, frozen=True, kw_only=True, tag="fetched"):
    """Sent when all is decided, before the KV: its layers arrive evenly between two moments, counted from the reply."""

    version: int = 1
    epoch: WorkerEpoch
    segments: tuple[FetchedSegment, ...]
    first_in_s: float = 0.0
    last_in_s: float = 0.0


class PullPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="pull_prompt"):
    """A decode worker takes over a prefilled prompt's KV; the prefill worker may free it afterwards.

    Where engines move the KV by themselves it is asked twice: before, whether it is still there, and afterwards.
    """

    version: int = 1
    request_id: RequestId
    from_worker: WorkerId
    has_arrived: bool = False


class PromptPulled(msgspec.Struct, frozen=True, kw_only=True, tag="prompt_pulled"):
    """`kv_bytes` is 0 when the prefill worker no longer has it."""

    version: int = 1
    found: bool
    kv_bytes: int


PeerRequest = FetchRequest | PullPrompt
PeerReply = FetchReply | PromptPulled


class PeerCall(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent to a peer's subject."""

    request: PeerRequest


class PeerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    reply: PeerReply


class SetSplit(msgspec.Struct, frozen=True, kw_only=True, tag="set_split"):
    """The share of the store's capacity for prefix blocks, 0 to 1; the rest is for segments."""

    version: int = 1
    prefix_ratio: float
