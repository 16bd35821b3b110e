"""What both tiers of an engine hold, known from its events alone: the answer to requests for the full state."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nebula_protocol.events import (
    BlockEntry,
    HostBlocksRemoved,
    HostBlocksStored,
    PicEventData,
    SegmentEntry,
    SegmentRemoved,
    SegmentStored,
    StoreCleared,
)
from nebula_protocol.ids import BlockHash, DomainId, EngineBlockHash, Origin, SegmentHash

_IN_DEVICE = 1
_IN_HOST = 2

_MAX_DEPARTED = 65_536


@dataclass(slots=True)
class _Block:
    parent_hash: EngineBlockHash | None
    tokens_hash: BlockHash
    lineage: str
    tiers: int


class StateMirror:
    """Blocks and segments by name.

    The events of the two tiers come by two ways and have no order among each other: what left the device tier is
    remembered for a while, since the store may have taken it, and what the store took first waits for its description.
    """

    def __init__(self) -> None:
        self._blocks: dict[EngineBlockHash, _Block] = {}
        self._departed: OrderedDict[EngineBlockHash, _Block] = OrderedDict()
        self._early: set[EngineBlockHash] = set()
        self._segments: dict[tuple[DomainId, SegmentHash], SegmentEntry] = {}

    # ---- the device tier ----

    def lineage_of(self, block_hash: EngineBlockHash) -> str | None:
        """None for an unknown block."""
        block = self._blocks.get(block_hash) or self._departed.get(block_hash)
        return None if block is None else block.lineage

    def put_device_blocks(
        self,
        lineage: str,
        parent_hash: EngineBlockHash | None,
        block_hashes: Sequence[EngineBlockHash],
        tokens_hashes: Sequence[BlockHash],
    ) -> None:
        """A run of blocks of one chain entered the device tier."""
        for block_hash, tokens_hash in zip(block_hashes, tokens_hashes, strict=True):
            known = self._blocks.get(block_hash)
            tiers = _IN_DEVICE | (known.tiers if known is not None else 0)
            if block_hash in self._early:
                self._early.discard(block_hash)
                tiers |= _IN_HOST
            self._departed.pop(block_hash, None)
            self._blocks[block_hash] = _Block(parent_hash, tokens_hash, lineage, tiers)
            parent_hash = block_hash

    def remove_device_blocks(self, block_hashes: Iterable[EngineBlockHash]) -> tuple[EngineBlockHash, ...]:
        """Blocks left the device tier.

        Returns:
            Those that were in it.
        """
        return tuple([block_hash for block_hash in block_hashes if self._leave(block_hash, _IN_DEVICE)])

    def clear_device(self) -> tuple[EngineBlockHash, ...]:
        """Every block left the device tier; those that were in it."""
        return self.remove_device_blocks(list(self._blocks))

    # ---- the store ----

    def apply(self, data: PicEventData) -> None:
        match data:
            case SegmentStored(segment_hash=segment_hash, domain_id=domain_id, num_tokens=num_tokens, origin=origin):
                entry = SegmentEntry(segment_hash, domain_id, num_tokens, origin)
                self._segments[domain_id, segment_hash] = entry
            case SegmentRemoved(segment_hash=segment_hash, domain_id=domain_id):
                self._segments.pop((domain_id, segment_hash), None)
            case HostBlocksStored(block_hashes=block_hashes):
                for block_hash in block_hashes:
                    self._enter_host(block_hash)
            case HostBlocksRemoved(block_hashes=block_hashes):
                for block_hash in block_hashes:
                    self._early.discard(block_hash)
                    self._leave(block_hash, _IN_HOST)
            case StoreCleared():
                self._segments.clear()
                self._early.clear()
                for block_hash in list(self._blocks):
                    self._leave(block_hash, _IN_HOST)

    # ---- the whole ----

    def blocks(self) -> tuple[BlockEntry, ...]:
        """Of both tiers, parents before children; a block whose parent is gone is listed too. O(blocks)."""
        listed: dict[EngineBlockHash, None] = {}
        for first in self._blocks:
            chain: list[EngineBlockHash] = []
            block_hash: EngineBlockHash | None = first
            while block_hash is not None and block_hash in self._blocks and block_hash not in listed:
                chain.append(block_hash)
                block_hash = self._blocks[block_hash].parent_hash
            listed.update(dict.fromkeys(reversed(chain)))
        return tuple([self._entry(block_hash) for block_hash in listed])

    def origin_of(self, domain_id: DomainId, segment_hash: SegmentHash) -> Origin | None:
        """Of a segment; None for one that is not there."""
        entry = self._segments.get((domain_id, segment_hash))
        return None if entry is None else entry.origin

    def segments(self) -> tuple[SegmentEntry, ...]:
        return tuple(self._segments.values())

    def _entry(self, block_hash: EngineBlockHash) -> BlockEntry:
        block = self._blocks[block_hash]
        return BlockEntry(block_hash, block.parent_hash, block.tokens_hash, block.tiers)

    def _enter_host(self, block_hash: EngineBlockHash) -> None:
        block = self._blocks.get(block_hash)
        if block is None and (departed := self._departed.pop(block_hash, None)) is not None:
            block = self._blocks[block_hash] = departed
        if block is not None:
            block.tiers |= _IN_HOST
        elif len(self._early) < _MAX_DEPARTED:
            self._early.add(block_hash)

    def _leave(self, block_hash: EngineBlockHash, tier: int) -> bool:
        """Whether the block was in the tier."""
        block = self._blocks.get(block_hash)
        if block is None or not block.tiers & tier:
            return False
        block.tiers &= ~tier
        if not block.tiers:
            del self._blocks[block_hash]
            if tier == _IN_DEVICE:
                self._remember(block_hash, block)
        return True

    def _remember(self, block_hash: EngineBlockHash, block: _Block) -> None:
        self._departed[block_hash] = block
        self._departed.move_to_end(block_hash)
        if len(self._departed) > _MAX_DEPARTED:
            self._departed.popitem(last=False)
