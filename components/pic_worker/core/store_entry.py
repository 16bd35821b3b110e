"""What the store holds, and what it tells about what it dropped."""

from dataclasses import dataclass
from typing import NamedTuple

from nebula_protocol.ids import DomainId, EngineBlockHash, Origin, SegmentHash


class SegmentKey(NamedTuple):
    domain_id: DomainId
    segment_hash: SegmentHash


@dataclass(frozen=True, slots=True)
class StoredSegment:
    key: SegmentKey
    token_bytes: bytes
    """The ids it was computed from: they verify what the hash only discovers."""
    num_tokens: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class Evictions:
    """Entries that left the store, oldest first in each class."""

    blocks: tuple[EngineBlockHash, ...] = ()
    segments: tuple[SegmentKey, ...] = ()


NO_EVICTIONS = Evictions()
