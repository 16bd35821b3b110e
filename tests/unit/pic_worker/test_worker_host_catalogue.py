"""Entries of the host store, from reservation to removal."""

import pytest

from nebula_protocol.events import (
    HostBlocksRemoved,
    HostBlocksStored,
    SegmentRemoved,
    SegmentStored,
    StoreCleared,
)
from nebula_protocol.ids import DomainId, EngineBlockHash, Origin, RemovalReason, SegmentHash
from pic_worker.core.host_catalogue import HostCatalogue
from pic_worker.core.host_entry import BlockName, SegmentReservation
from pic_worker.core.store_entry import SegmentKey, StoredSegment

PAGE_TOKENS = 4
BLOCK_TOKENS = 8
DOMAIN = DomainId("d")


def catalogue_of(num_pages: int, prefix_ratio: float = 0.5) -> HostCatalogue:
    return HostCatalogue(
        # Three tokens more are no page.
        capacity_tokens=num_pages * PAGE_TOKENS + 3,
        page_tokens=PAGE_TOKENS,
        block_size_tokens=BLOCK_TOKENS,
        prefix_ratio=prefix_ratio,
    )


def key(name: str) -> SegmentKey:
    return SegmentKey(DOMAIN, SegmentHash(name.encode().ljust(16)))


def segment(name: str, num_tokens: int, origin: Origin = Origin.IN_CONTEXT) -> StoredSegment:
    return StoredSegment(key(name), name.encode(), num_tokens, origin)


def block(number: int) -> BlockName:
    return BlockName(EngineBlockHash(number), bytes([number]))


def stored_event(name: str, num_tokens: int, origin: Origin = Origin.IN_CONTEXT) -> SegmentStored:
    return SegmentStored(segment_hash=key(name).segment_hash, domain_id=DOMAIN, num_tokens=num_tokens, origin=origin)


def removed_event(name: str, reason: RemovalReason) -> SegmentRemoved:
    return SegmentRemoved(segment_hash=key(name).segment_hash, domain_id=DOMAIN, reason=reason)


def keep(
    catalogue: HostCatalogue, name: str, num_tokens: int, origin: Origin = Origin.IN_CONTEXT, position: int = 0
) -> SegmentReservation:
    reservation = catalogue.reserve_segment(segment(name, num_tokens, origin), position)
    assert reservation is not None
    catalogue.confirm([reservation.save_id])
    return reservation


def keep_blocks(catalogue: HostCatalogue, *numbers: int) -> None:
    reservations = catalogue.reserve_blocks([(block(number), False) for number in numbers])
    catalogue.confirm(reservation.save_id for reservation in reservations)


def test_a_segment_is_found_once_its_save_is_confirmed() -> None:
    catalogue = catalogue_of(4)
    reservation = catalogue.reserve_segment(segment("a", 5), 7)
    assert reservation is not None
    assert catalogue.find_segment(key("a")) is None
    assert catalogue.take_events() == ()
    catalogue.confirm([reservation.save_id])
    found = catalogue.find_segment(key("a"))
    assert found is not None
    assert (found.pages, found.stored_position, found.token_bytes) == (reservation.pages, 7, b"a")
    assert catalogue.take_events() == (stored_event("a", 5),)


def test_a_segment_takes_whole_pages() -> None:
    catalogue = catalogue_of(4)
    # 5 tokens take 2 pages of 4.
    assert len(keep(catalogue, "a", 5).pages) == 2
    assert (catalogue.used_tokens, catalogue.num_free_pages) == (8, 2)


def test_what_is_on_its_way_is_not_reserved_twice() -> None:
    catalogue = catalogue_of(4)
    assert catalogue.reserve_segment(segment("a", 5), 0) is not None
    assert catalogue.reserve_segment(segment("a", 5), 9) is None


def test_a_copy_in_context_takes_the_pages_of_one_computed_alone() -> None:
    catalogue = catalogue_of(4)
    alone = keep(catalogue, "a", 5, Origin.ALONE)
    in_context = catalogue.reserve_segment(segment("a", 5), 30)
    assert in_context is not None
    assert in_context.pages == alone.pages
    assert catalogue.find_segment(key("a")) is None
    catalogue.confirm([in_context.save_id])
    found = catalogue.find_segment(key("a"))
    assert found is not None
    assert (found.origin, found.stored_position) == (Origin.IN_CONTEXT, 30)
    assert catalogue.reserve_segment(segment("a", 5, Origin.ALONE), 0) is None
    assert catalogue.take_events() == (stored_event("a", 5, Origin.ALONE), stored_event("a", 5))


def test_the_oldest_segment_gives_way_and_is_withdrawn() -> None:
    catalogue = catalogue_of(4)
    keep(catalogue, "a", 8)
    keep(catalogue, "b", 8)
    catalogue.find_segment(key("a"))
    catalogue.take_events()
    keep(catalogue, "c", 8)
    assert catalogue.take_events() == (removed_event("b", RemovalReason.CAPACITY), stored_event("c", 8))
    assert catalogue.find_segment(key("b")) is None


def test_a_segment_in_use_stays_as_long_as_anybody_uses_it() -> None:
    catalogue = catalogue_of(2)
    keep(catalogue, "a", 8)
    catalogue.pin_segment(key("a"))
    catalogue.pin_segment(key("a"))
    catalogue.unpin_segment(key("a"))
    assert catalogue.reserve_segment(segment("b", 4), 0) is None
    catalogue.unpin_segment(key("a"))
    assert catalogue.reserve_segment(segment("b", 4), 0) is not None


def test_a_reserved_entry_is_never_evicted() -> None:
    catalogue = catalogue_of(2)
    assert catalogue.reserve_segment(segment("a", 8), 0) is not None
    assert catalogue.reserve_segment(segment("b", 4), 0) is None
    assert catalogue.reserve_blocks([(block(1), False)]) == ()


def test_blocks_are_found_up_to_the_first_that_is_not_ready() -> None:
    catalogue = catalogue_of(8)
    keep_blocks(catalogue, 1, 2)
    catalogue.reserve_blocks([(block(3), False)])
    keep_blocks(catalogue, 4)
    assert [found.name for found in catalogue.find_blocks(map(block, (1, 2, 3, 4)))] == [block(1), block(2)]
    assert catalogue.take_events() == (
        HostBlocksStored(block_hashes=(EngineBlockHash(1), EngineBlockHash(2))),
        HostBlocksStored(block_hashes=(EngineBlockHash(4),)),
    )


def test_a_block_that_only_shares_its_short_name_is_not_found() -> None:
    catalogue = catalogue_of(8)
    keep_blocks(catalogue, 1)
    assert catalogue.find_blocks([BlockName(EngineBlockHash(1), b"other")]) == ()


def test_evicted_blocks_are_withdrawn() -> None:
    catalogue = catalogue_of(4, prefix_ratio=1.0)
    keep_blocks(catalogue, 1, 2)
    catalogue.take_events()
    catalogue.reserve_blocks([(block(3), True)])
    assert catalogue.take_events() == (
        HostBlocksRemoved(block_hashes=(EngineBlockHash(1),), reason=RemovalReason.CAPACITY),
    )


def test_a_cancelled_save_gives_its_room_back_and_is_never_told() -> None:
    catalogue = catalogue_of(4)
    reservation = catalogue.reserve_segment(segment("a", 5), 0)
    assert reservation is not None
    blocks = catalogue.reserve_blocks([(block(1), False)])
    catalogue.cancel([reservation.save_id, *(each.save_id for each in blocks)])
    assert (catalogue.num_free_pages, catalogue.used_tokens, catalogue.num_reserved) == (4, 0, 0)
    assert catalogue.take_events() == ()


def test_a_cancelled_replacement_withdraws_what_it_replaced() -> None:
    catalogue = catalogue_of(4)
    keep(catalogue, "a", 5, Origin.ALONE)
    catalogue.take_events()
    reservation = catalogue.reserve_segment(segment("a", 5), 9)
    assert reservation is not None
    catalogue.cancel([reservation.save_id])
    assert catalogue.take_events() == (removed_event("a", RemovalReason.DROPPED),)
    assert catalogue.num_free_pages == 4


def test_clearing_an_idle_store_is_one_event() -> None:
    catalogue = catalogue_of(8)
    keep(catalogue, "a", 5)
    keep_blocks(catalogue, 1)
    catalogue.take_events()
    catalogue.clear()
    assert catalogue.take_events() == (StoreCleared(),)
    assert catalogue.num_free_pages == 8
    catalogue.clear()
    assert catalogue.take_events() == ()


def test_clearing_leaves_what_is_in_use() -> None:
    catalogue = catalogue_of(8)
    keep(catalogue, "a", 5)
    keep(catalogue, "b", 5)
    catalogue.pin_segment(key("a"))
    catalogue.take_events()
    catalogue.clear()
    assert catalogue.take_events() == (removed_event("b", RemovalReason.CLEARED),)
    assert catalogue.has_segment(key("a"))


def test_pages_must_divide_blocks() -> None:
    with pytest.raises(ValueError, match="do not divide"):
        HostCatalogue(capacity_tokens=64, page_tokens=3, block_size_tokens=8, prefix_ratio=0.5)


def test_a_leased_segment_is_not_replaced_in_its_pages_while_it_is_read() -> None:
    catalogue = catalogue_of(4)
    keep(catalogue, "a", 5, Origin.ALONE)
    catalogue.lease_segment(key("a"))
    assert catalogue.reserve_segment(segment("a", 5), 30) is None
    catalogue.end_lease(key("a"))
    assert catalogue.reserve_segment(segment("a", 5), 30) is not None


def test_a_dropped_segment_is_withdrawn_when_it_is_no_longer_in_use() -> None:
    catalogue = catalogue_of(4)
    keep(catalogue, "a", 5)
    catalogue.take_events()
    catalogue.pin_segment(key("a"))
    catalogue.pin_segment(key("a"))
    catalogue.drop_segment(key("a"))
    catalogue.unpin_segment(key("a"))
    assert catalogue.has_segment(key("a"))
    catalogue.unpin_segment(key("a"))
    catalogue.drop_segment(key("a"))
    assert catalogue.take_events() == (removed_event("a", RemovalReason.DROPPED),)
    assert catalogue.num_free_pages == 4


def test_a_dropped_segment_stays_where_it_was_leased_meanwhile() -> None:
    catalogue = catalogue_of(4)
    keep(catalogue, "a", 5)
    catalogue.pin_segment(key("a"))
    catalogue.drop_segment(key("a"))
    catalogue.lease_segment(key("a"))
    catalogue.unpin_segment(key("a"))
    catalogue.end_lease(key("a"))
    assert catalogue.has_segment(key("a"))
