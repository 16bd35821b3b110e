"""Which worker has which prefix blocks, as the events tell."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nebula_protocol.events import (
    HostBlocksRemoved,
    HostBlocksStored,
    PicEvent,
    StoreCleared,
    WorkerKvEvent,
)
from nebula_protocol.hashing import hash_blocks
from nebula_protocol.ids import EngineBlockHash, WorkerId
from nebula_protocol.messages import StateChunk
from nebula_protocol.tokens import TokenArray
from pic_worker.core.block_chain import chain_blocks

_IN_DEVICE = 1
_IN_HOST = 2


@dataclass(frozen=True, slots=True)
class Overlap:
    """Leading blocks of a prompt at one worker."""

    device_blocks: int = 0
    host_blocks: int = 0
    """That follow on the device's, in either tier."""

    @property
    def num_blocks(self) -> int:
        return self.device_blocks + self.host_blocks


def block_chain(tokens: TokenArray, block_size_tokens: int) -> tuple[EngineBlockHash, ...]:
    """The workers' names of a prompt's full blocks: equal everywhere for equal prompts, where nobody has a tenant."""
    return chain_blocks(hash_blocks(tokens, block_size_tokens), lineage="").hashes


@dataclass(slots=True)
class BlockIndex:
    """A chain's name stands for all before it, so one look-up a block replaces a radix tree."""

    _tiers: dict[WorkerId, dict[EngineBlockHash, int]] = field(default_factory=dict)

    def replace_worker(self, worker_id: WorkerId, chunks: Sequence[StateChunk]) -> None:
        """All that the worker has, from its full state."""
        self._tiers[worker_id] = {entry.block_hash: entry.tiers for chunk in chunks for entry in chunk.blocks}

    def remove_worker(self, worker_id: WorkerId) -> None:
        self._tiers.pop(worker_id, None)

    def worker_ids(self) -> list[WorkerId]:
        return sorted(self._tiers)

    def apply_kv_events(self, events: Iterable[WorkerKvEvent]) -> None:
        for event in events:
            tiers = self._tiers.get(event.worker_id)
            if tiers is None:
                continue
            data = event.event.data
            if isinstance(data, str):
                _take(tiers, list(tiers), _IN_DEVICE)
            elif data.stored is not None:
                for block in data.stored.blocks:
                    name = EngineBlockHash(block.block_hash)
                    tiers[name] = tiers.get(name, 0) | _IN_DEVICE
            elif data.removed is not None:
                _take(tiers, map(EngineBlockHash, data.removed.block_hashes), _IN_DEVICE)

    def apply_pic_events(self, worker_id: WorkerId, events: Iterable[PicEvent]) -> None:
        tiers = self._tiers.get(worker_id)
        if tiers is None:
            return
        for event in events:
            match event.data:
                case HostBlocksStored(block_hashes=names):
                    for name in names:
                        tiers[name] = tiers.get(name, 0) | _IN_HOST
                case HostBlocksRemoved(block_hashes=names):
                    _take(tiers, names, _IN_HOST)
                case StoreCleared():
                    _take(tiers, list(tiers), _IN_HOST)
                case _:
                    pass

    def overlap(self, worker_id: WorkerId, chain: Sequence[EngineBlockHash]) -> Overlap:
        """O(blocks that match)."""
        tiers = self._tiers[worker_id]
        device = total = 0
        for name in chain:
            held = tiers.get(name, 0)
            if not held:
                break
            if held & _IN_DEVICE and device == total:
                device += 1
            total += 1
        return Overlap(device, total - device)

    def has_all(self, worker_id: WorkerId, names: Iterable[EngineBlockHash]) -> bool:
        tiers = self._tiers.get(worker_id, {})
        return all(name in tiers for name in names)


def _take(tiers: dict[EngineBlockHash, int], names: Iterable[EngineBlockHash], tier: int) -> None:
    for name in names:
        left = tiers.get(name, 0) & ~tier
        if left:
            tiers[name] = left
        else:
            tiers.pop(name, None)
