"""What the host store holds and where: the policy's entries, their pages, and which of them count already."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nebula_protocol.events import (
    HostBlocksRemoved,
    HostBlocksStored,
    PicEventData,
    SegmentRemoved,
    SegmentStored,
    StoreCleared,
)
from nebula_protocol.ids import EngineBlockHash, RemovalReason
from pic_worker.core.arena_ids import SaveId
from pic_worker.core.host_entry import (
    BlockName,
    BlockReservation,
    HostBlock,
    HostSegment,
    SegmentReservation,
)
from pic_worker.core.page_pool import PagePool
from pic_worker.core.store import Kept, TwoClassStore
from pic_worker.core.store_entry import Evictions, SegmentKey, StoredSegment


@dataclass(slots=True)
class _Block:
    host: HostBlock
    is_ready: bool = False


@dataclass(slots=True)
class _Segment:
    host: HostSegment
    is_ready: bool = False
    is_announced: bool = False
    """An event told of it, or of the copy whose place it took."""
    num_leases: int = 0
    is_leaving: bool = False
    """Goes as soon as nobody uses it."""


class HostCatalogue:
    """Entries are reserved (room taken, pinned, found by nobody) until their save is confirmed, then ready.

    All entries take whole pages. A segment in context takes the pages of the one computed alone that it replaces: saves
    and loads are carried out in the order in which they are asked for, so a load asked for earlier still finds the old
    KV there.
    """

    def __init__(self, *, capacity_tokens: int, page_tokens: int, block_size_tokens: int, prefix_ratio: float) -> None:
        """
        Raises:
            ValueError: a block is no whole number of pages.
        """
        if block_size_tokens % page_tokens:
            raise ValueError(f"pages of {page_tokens} tokens do not divide blocks of {block_size_tokens}")
        num_pages = capacity_tokens // page_tokens
        self._page_tokens = page_tokens
        self._block_pages = block_size_tokens // page_tokens
        self._pool = PagePool(num_pages)
        self._store = TwoClassStore(
            capacity_tokens=num_pages * page_tokens,
            prefix_ratio=prefix_ratio,
            block_size_tokens=block_size_tokens,
            page_tokens=page_tokens,
        )
        self._blocks: dict[EngineBlockHash, _Block] = {}
        self._segments: dict[SegmentKey, _Segment] = {}
        self._saves: dict[SaveId, EngineBlockHash | SegmentKey] = {}
        self._next_save = 0
        self._events: list[PicEventData] = []

    @property
    def num_free_pages(self) -> int:
        return self._pool.num_free

    @property
    def num_reserved(self) -> int:
        """Saves that are neither confirmed nor cancelled."""
        return len(self._saves)

    @property
    def used_tokens(self) -> int:
        """In whole pages."""
        return self._store.used_tokens

    @property
    def pinned_tokens(self) -> int:
        return self._store.pinned_tokens

    def take_events(self) -> tuple[PicEventData, ...]:
        """What was stored and removed since the last look, in order."""
        events = tuple(self._events)
        self._events.clear()
        return events

    # ---- prefix blocks ----

    def find_blocks(self, names: Iterable[BlockName]) -> tuple[HostBlock, ...]:
        """The leading ones that are here, up to the first that is not."""
        found: list[HostBlock] = []
        for name in names:
            block = self._blocks.get(name.block_hash)
            if block is None or not block.is_ready or block.host.name != name:
                break
            found.append(block.host)
        return tuple(found)

    def reserve_blocks(self, leaving: Sequence[tuple[BlockName, bool]]) -> tuple[BlockReservation, ...]:
        """Takes room for those that are not here, as far as there is some; the others become the most recently used.

        Args:
            leaving: distinct, the last one the most recently used; with each, whether some of its KV was injected.
        """
        is_injected = {name.block_hash: (name, injected) for name, injected in leaving}
        put = self._store.put_blocks(tuple(is_injected))
        self._drop(put.evictions, RemovalReason.CAPACITY)
        reservations: list[BlockReservation] = []
        for block_hash in put.stored:
            name, injected = is_injected[block_hash]
            host = HostBlock(name, self._pool.take(self._block_pages), injected)
            self._blocks[block_hash] = _Block(host)
            self._store.pin_blocks((block_hash,))
            reservations.append(BlockReservation(self._new_save(block_hash), name, host.pages))
        return tuple(reservations)

    def pin_blocks(self, blocks: Sequence[HostBlock]) -> None:
        self._store.pin_blocks([block.name.block_hash for block in blocks])

    def unpin_blocks(self, blocks: Sequence[HostBlock]) -> None:
        # From the tail, so that heads of chains are the last to be evicted.
        self._store.unpin_blocks([block.name.block_hash for block in reversed(blocks)])

    # ---- segments ----

    def find_segment(self, key: SegmentKey) -> HostSegment | None:
        """The entry with this key, touched; the caller compares its token bytes before use."""
        segment = self._segments.get(key)
        if segment is None or not segment.is_ready:
            return None
        self._store.find_segment(key)
        return segment.host

    def has_segment(self, key: SegmentKey) -> bool:
        segment = self._segments.get(key)
        return segment is not None and segment.is_ready

    def reserve_segment(self, stored: StoredSegment, stored_position: int) -> SegmentReservation | None:
        """Takes room for a segment; None where it is here or on its way as good or better, leased, or finds no room."""
        key = stored.key
        present = self._segments.get(key)
        if present is not None and (not present.is_ready or present.num_leases):
            return None
        put = self._store.put_segment(stored)
        self._drop(put.evictions, RemovalReason.CAPACITY)
        if put.kept is not Kept.NEW:
            return None
        num_pages = -(-stored.num_tokens // self._page_tokens)
        pages = self._pool.take(num_pages) if present is None else present.host.pages
        host = HostSegment(key, stored.token_bytes, stored.num_tokens, stored.origin, stored_position, pages)
        self._segments[key] = _Segment(host, is_announced=present is not None)
        self._store.pin_segment(key)
        return SegmentReservation(self._new_save(key), pages)

    def pin_segment(self, key: SegmentKey) -> None:
        self._store.pin_segment(key)

    def unpin_segment(self, key: SegmentKey) -> None:
        self._store.unpin_segment(key)
        if self._segments[key].is_leaving:
            self.drop_segment(key)

    def is_expected(self, key: SegmentKey) -> bool:
        """Whether it is here, or will be once a save is confirmed."""
        return key in self._segments

    def lease_segment(self, key: SegmentKey) -> None:
        """Pins it against replacement too: it is read apart from the order of saves and loads."""
        self._store.pin_segment(key)
        segment = self._segments[key]
        segment.num_leases += 1
        # Who holds it now decides anew.
        segment.is_leaving = False

    def end_lease(self, key: SegmentKey) -> None:
        self._segments[key].num_leases -= 1
        self.unpin_segment(key)

    def drop_segment(self, key: SegmentKey) -> None:
        """Takes it out, as soon as it is not in use."""
        if not self.has_segment(key):
            return
        if self._store.is_segment_pinned(key):
            self._segments[key].is_leaving = True
            return
        self._store.remove_segment(key)
        self._drop_segment(key, RemovalReason.DROPPED)

    # ---- saves ----

    def confirm(self, save_ids: Iterable[SaveId]) -> None:
        """All ranks have saved these: from now on they are found."""
        stored: list[EngineBlockHash] = []
        for save_id in sorted(save_ids):
            saved = self._saves.pop(save_id, None)
            if isinstance(saved, SegmentKey):
                self._confirm_segment(saved)
            elif saved is not None:
                self._blocks[saved].is_ready = True
                self._store.unpin_blocks((saved,))
                stored.append(saved)
        if stored:
            self._events.append(HostBlocksStored(block_hashes=tuple(stored)))

    def cancel(self, save_ids: Iterable[SaveId]) -> None:
        """These will not be saved: their room is free again."""
        for save_id in save_ids:
            saved = self._saves.pop(save_id, None)
            if isinstance(saved, SegmentKey):
                self._store.unpin_segment(saved)
                self._store.remove_segment(saved)
                self._drop_segment(saved, RemovalReason.DROPPED)
            elif saved is not None:
                self._store.unpin_blocks((saved,))
                self._store.remove_block(saved)
                self._pool.give_back(self._blocks.pop(saved).host.pages)

    def _confirm_segment(self, key: SegmentKey) -> None:
        segment = self._segments[key]
        segment.is_ready = segment.is_announced = True
        self._store.unpin_segment(key)
        host = segment.host
        self._events.append(
            SegmentStored(
                segment_hash=key.segment_hash,
                domain_id=key.domain_id,
                num_tokens=host.num_tokens,
                origin=host.origin,
            )
        )

    def _new_save(self, entry: EngineBlockHash | SegmentKey) -> SaveId:
        save_id = SaveId(self._next_save)
        self._next_save += 1
        self._saves[save_id] = entry
        return save_id

    # ---- leaving ----

    def set_split(self, prefix_ratio: float) -> None:
        self._store.set_split(prefix_ratio)

    def clear(self) -> None:
        """Drops every entry that is neither in use nor reserved."""
        evictions = self._store.clear()
        if self._store.used_tokens:
            self._drop(evictions, RemovalReason.CLEARED)
            return
        events, self._events = self._events, []
        self._drop(evictions, RemovalReason.CLEARED)
        self._events = [*events, StoreCleared()] if self._events else events

    def _drop(self, evictions: Evictions, reason: RemovalReason) -> None:
        """Entries left the policy's store: their pages are free."""
        for block_hash in evictions.blocks:
            self._pool.give_back(self._blocks.pop(block_hash).host.pages)
        if evictions.blocks:
            self._events.append(HostBlocksRemoved(block_hashes=evictions.blocks, reason=reason))
        for key in evictions.segments:
            self._drop_segment(key, reason)

    def _drop_segment(self, key: SegmentKey, reason: RemovalReason) -> None:
        segment = self._segments.pop(key)
        self._pool.give_back(segment.host.pages)
        if segment.is_announced:
            self._events.append(SegmentRemoved(segment_hash=key.segment_hash, domain_id=key.domain_id, reason=reason))
