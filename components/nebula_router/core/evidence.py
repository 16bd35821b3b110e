"""What the view noticed while it took in events: for metrics, logs, ghosts and repair. The core itself logs nothing."""

from dataclasses import dataclass, field
from enum import StrEnum

from nebula_protocol.ids import DomainId, DpRank, EventId, PrefixKey, RemovalReason, SegmentHash, WorkerId
from nebula_protocol.subjects import Topic


@dataclass(frozen=True, slots=True)
class LostBlocks:
    """Prefix blocks that left the last store that had them; no worker has or expects them now."""

    keys: tuple[PrefixKey, ...]
    depths: tuple[int, ...]
    """By block: number of blocks before it in its chain."""
    block_size_tokens: int
    reason: RemovalReason


@dataclass(frozen=True, slots=True)
class LostSegment:
    """A segment that left the last store that had it; no worker has or expects it now."""

    domain_id: DomainId
    segment_hash: SegmentHash
    num_tokens: int
    reason: RemovalReason


LostEntry = LostBlocks | LostSegment


class GapReason(StrEnum):
    """Why what a worker holds is not known for sure."""

    LOST_EVENTS = "lost_events"
    """Event ids jumped."""
    MISSING_TAIL = "missing_tail"
    """A receipt names later events than have arrived, and they do not come."""
    UNKNOWN_PARENT = "unknown_parent"
    """A block continues a chain of which nothing is known."""
    UNKNOWN_BLOCK = "unknown_block"
    """The store has a block of which the device tier never told."""
    RESTARTED = "restarted"
    """Another process answers under the worker's id."""


@dataclass(frozen=True, slots=True)
class Gap:
    """The worker's full state is needed. `expected` and `got` are event ids where ids are the reason."""

    worker_id: WorkerId
    dp_rank: DpRank
    topic: Topic
    reason: GapReason
    expected: EventId | None = None
    got: EventId | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """What a batch of events changed. Counts are of blocks and segments, by holder and tier."""

    num_stored: int = 0
    num_removed: int = 0
    num_ignored_events: int = 0
    """Repeated, older than the state known, or of a worker that is not known or holds nothing."""
    lost: tuple[LostEntry, ...] = ()
    gaps: tuple[Gap, ...] = ()


@dataclass(slots=True)
class Tally:
    """An `Applied` in the making."""

    num_stored: int = 0
    num_removed: int = 0
    num_ignored_events: int = 0
    lost: list[LostEntry] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    def result(self) -> Applied:
        return Applied(self.num_stored, self.num_removed, self.num_ignored_events, tuple(self.lost), tuple(self.gaps))
