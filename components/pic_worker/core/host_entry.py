"""What the catalogue tells about entries: where their KV lies and what is known of it."""

from dataclasses import dataclass

from nebula_protocol.ids import EngineBlockHash, Origin
from pic_worker.core.arena_ids import Page, SaveId
from pic_worker.core.store_entry import SegmentKey


@dataclass(frozen=True, slots=True)
class BlockName:
    """A prefix block by both its names."""

    block_hash: EngineBlockHash
    """As in events: possibly a part of the engine's hash."""
    full_hash: bytes
    """The engine's own hash, whole: verifies what the shorter one discovers."""


@dataclass(frozen=True, slots=True)
class HostBlock:
    name: BlockName
    pages: tuple[Page, ...]
    is_injected: bool
    """Some of its KV came from a segment computed elsewhere."""


@dataclass(frozen=True, slots=True)
class HostSegment:
    key: SegmentKey
    token_bytes: bytes
    num_tokens: int
    origin: Origin
    stored_position: int
    """Position that its first key is rotated to."""
    pages: tuple[Page, ...]


@dataclass(frozen=True, slots=True)
class BlockReservation:
    """Room for a block; the block counts once its save is confirmed."""

    save_id: SaveId
    name: BlockName
    pages: tuple[Page, ...]


@dataclass(frozen=True, slots=True)
class SegmentReservation:
    save_id: SaveId
    pages: tuple[Page, ...]
