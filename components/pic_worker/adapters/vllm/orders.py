"""What the scheduler's half of the connector tells the ranks in a step, and what they report back.

Every rank carries the same orders out in the same order: first `block_saves` (before anything is overwritten), then
`loads`, then `chunks`, then vLLM's own forward pass, then `segment_saves`.
"""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from pic_worker.core.arena_ids import Page as Page
from pic_worker.core.arena_ids import SaveId as SaveId


@dataclass(frozen=True, slots=True)
class BlockSave:
    """A block of the device tier that is about to be overwritten: copy it out."""

    save_id: SaveId
    block_id: int
    pages: tuple[Page, ...]


@dataclass(frozen=True, slots=True)
class SegmentSave:
    """Tokens [start, end) of a request, complete after this step: copy them out, keys as they are rotated there."""

    save_id: SaveId
    block_ids: tuple[int, ...]
    """The request's block table from its first token on, at least up to `end`."""
    start: int
    end: int
    pages: tuple[Page, ...]


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """A prefix block that comes back as it was."""

    pages: tuple[Page, ...]
    block_id: int


@dataclass(frozen=True, slots=True)
class Injection:
    """A stored segment's tokens from `skip_tokens` on become the request's tokens [start, end)."""

    pages: tuple[Page, ...]
    """Of the whole stored segment."""
    stored_position: int
    """Position that the stored segment's first key is rotated to."""
    skip_tokens: int
    """Leading tokens that the prefix covers: the stored segment begins at `start - skip_tokens`."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Selection:
    """CacheBlend: of the injected tokens, compute those again whose keys deviate most in the probed layers."""

    num_tokens: int
    """How many, beside `LoadOrder.recompute`; at most the number of injected tokens outside of it."""


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """Fills [start, end) of a request's KV: blocks and injections now, recomputation by `ChunkOrder`."""

    request_id: str
    token_ids: tuple[int, ...]
    """Of [0, end)."""
    block_ids: tuple[int, ...]
    start: int
    """Tokens before are in the device tier already."""
    end: int
    block_loads: tuple[BlockLoad, ...] = ()
    injections: tuple[Injection, ...] = ()
    """Ascending and disjoint."""
    recompute: tuple[tuple[int, int], ...] = ()
    """Runs [a, b) known beforehand: gaps between what is loaded, and leading tokens. Ascending and disjoint."""
    selection: Selection | None = None

    @property
    def recomputed_tokens(self) -> int:
        """All positions to compute, the selected ones too."""
        selected = self.selection.num_tokens if self.selection is not None else 0
        return selected + sum(b - a for a, b in self.recompute)


@dataclass(frozen=True, slots=True)
class ChunkOrder:
    """Compute the load's positions number [first, first + num_tokens) in ascending order of position."""

    request_id: str
    first: int
    num_tokens: int
    last: bool
    """The load is complete behind it. A load without positions gets one chunk of no tokens."""
    is_async: bool
    """The request waits outside vLLM's batch: report it as received when `last`."""


@dataclass(frozen=True, slots=True)
class StepOrders(KVConnectorMetadata):
    block_saves: tuple[BlockSave, ...] = ()
    loads: tuple[LoadOrder, ...] = ()
    chunks: tuple[ChunkOrder, ...] = ()
    segment_saves: tuple[SegmentSave, ...] = ()
    given_up: tuple[str, ...] = ()
    """Loads in progress whose request is gone: forget them, and report them as received if they were async."""


@dataclass(frozen=True, slots=True)
class StepReport(KVConnectorWorkerMetadata):
    """What a rank has done; together, what all ranks have done."""

    saved: frozenset[SaveId] = field(default_factory=frozenset)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "StepReport":
        if not isinstance(other, StepReport):
            raise TypeError(f"cannot join the report of another connector: {type(other).__name__}")
        return StepReport(self.saved & other.saved)
