"""Single events, once they are accepted, into the index."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import assert_never

from nebula_protocol.events import (
    HostBlocksRemoved,
    HostBlocksStored,
    PicEvent,
    SegmentRemoved,
    SegmentStored,
    StoreCleared,
    WorkerKvEvent,
)
from nebula_protocol.ids import RemovalReason, Tier
from nebula_router.core.evidence import Tally
from nebula_router.core.holders import Holder
from nebula_router.core.index import Index, Removal
from nebula_router.core.key_map import hash_array

_DEVICE_TIER = "device"


@dataclass(frozen=True, slots=True)
class AcceptedKvEvent:
    holder: Holder
    event: WorkerKvEvent

    @property
    def tier(self) -> Tier:
        """Dynamo knows more tiers below the device; all of them are reloaded from, like our store."""
        return Tier.DEVICE if self.event.storage_tier == _DEVICE_TIER else Tier.HOST

    @property
    def removed(self) -> tuple[int, ...]:
        data = self.event.event.data
        return data.removed.block_hashes if data != "cleared" and data.removed is not None else ()


def write_kv_events(index: Index, accepted: Sequence[AcceptedKvEvent], now_s: float, tally: Tally) -> list[Holder]:
    """Takes in prefix-block events, and returns the holders of which blocks continue an unknown chain.

    Engines tell of evictions one by one: removals that follow each other are taken together.
    """
    unknown: list[Holder] = []
    for (holder, tier, is_removal), group in groupby(accepted, lambda one: (one.holder, one.tier, bool(one.removed))):
        if is_removal:
            names = [name for one in group for name in one.removed]
            _remove_blocks(index, holder, tier, names, now_s, tally)
            continue
        for one in group:
            if not _write_kv_event(index, one, tally):
                unknown.append(holder)
    return unknown


def write_pic_event(index: Index, holder: Holder, event: PicEvent, now_s: float, tally: Tally) -> None:
    match event.data:
        case SegmentStored() as stored:
            is_new = index.store_segment(holder, stored.domain_id, stored.segment_hash, stored.num_tokens)
            tally.num_stored += int(is_new)
        case SegmentRemoved() as removed:
            _count(index.remove_segment(holder, removed.domain_id, removed.segment_hash, removed.reason), tally)
        case HostBlocksStored(block_hashes=names):
            tally.num_stored += index.store_host_blocks(holder, hash_array(names), now_s)
        case HostBlocksRemoved(block_hashes=names, reason=reason):
            _count(index.remove_host_blocks(holder, hash_array(names), reason), tally)
        case StoreCleared():
            _count(index.clear_store(holder), tally)
        case _:
            assert_never(event.data)


def _write_kv_event(index: Index, accepted: AcceptedKvEvent, tally: Tally) -> bool:
    """False when the blocks continue an unknown chain."""
    holder, data = accepted.holder, accepted.event.event.data
    if data == "cleared":
        is_device = accepted.tier is Tier.DEVICE
        _count(index.clear_device(holder) if is_device else index.clear_store(holder), tally)
        return True
    stored = data.stored
    if stored is None or not stored.blocks:
        return True
    names = hash_array([block.block_hash for block in stored.blocks])
    tokens_hashes = hash_array([block.tokens_hash for block in stored.blocks])
    parent = None if stored.parent_hash is None else int(hash_array([stored.parent_hash])[0])
    num_new = index.store_blocks(holder, parent, names, tokens_hashes, accepted.tier)
    tally.num_stored += num_new or 0
    return num_new is not None


def _remove_blocks(index: Index, holder: Holder, tier: Tier, names: Sequence[int], now_s: float, tally: Tally) -> None:
    if tier is Tier.DEVICE:
        _count(index.remove_device_blocks(holder, hash_array(names), now_s), tally)
    else:
        # Dynamo's events give no reason, and only what is known to have gone for want of room may become a ghost.
        _count(index.remove_host_blocks(holder, hash_array(names), RemovalReason.DROPPED), tally)


def _count(removal: Removal, tally: Tally) -> None:
    tally.num_removed += removal.num_removed
    if removal.lost is not None:
        tally.lost.append(removal.lost)
