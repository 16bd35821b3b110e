"""Which worker has which leading blocks of a prompt."""

from nebula_bench.policies.block_index import BlockIndex, Overlap
from nebula_protocol.events import (
    BlocksRemoved,
    BlocksStored,
    HostBlocksRemoved,
    HostBlocksStored,
    KvEvent,
    KvEventData,
    PicEvent,
    PicEventData,
    StoreCleared,
    StoredBlock,
    WorkerKvEvent,
)
from nebula_protocol.ids import EngineBlockHash, EventId, RemovalReason, WorkerId

ONE, TWO = WorkerId(1), WorkerId(2)
CHAIN = tuple(map(EngineBlockHash, (11, 12, 13, 14)))


def stored(worker_id: WorkerId, *names: int) -> WorkerKvEvent:
    blocks = tuple(StoredBlock(block_hash=name, tokens_hash=0) for name in names)
    data = KvEventData(stored=BlocksStored(blocks=blocks))
    return WorkerKvEvent(worker_id=worker_id, event=KvEvent(event_id=EventId(1), data=data))


def removed(worker_id: WorkerId, *names: int) -> WorkerKvEvent:
    data = KvEventData(removed=BlocksRemoved(block_hashes=names))
    return WorkerKvEvent(worker_id=worker_id, event=KvEvent(event_id=EventId(2), data=data))


def pic(data: PicEventData) -> list[PicEvent]:
    return [PicEvent(event_id=EventId(0), data=data)]


def host_stored(*names: int) -> list[PicEvent]:
    return pic(HostBlocksStored(block_hashes=tuple(map(EngineBlockHash, names))))


def index_of_two() -> BlockIndex:
    index = BlockIndex()
    index.replace_worker(ONE, ())
    index.replace_worker(TWO, ())
    return index


def test_leading_blocks_count_up_to_the_first_that_is_missing() -> None:
    index = index_of_two()
    index.apply_kv_events([stored(ONE, 11, 12, 14)])
    assert index.overlap(ONE, CHAIN) == Overlap(device_blocks=2)
    assert index.overlap(TWO, CHAIN) == Overlap()


def test_blocks_in_the_store_continue_what_the_device_has() -> None:
    index = index_of_two()
    index.apply_kv_events([stored(ONE, 11, 13)])
    index.apply_pic_events(ONE, host_stored(12))
    # 11 in the device; 12 only in the store; 13 in the device, but behind it.
    assert index.overlap(ONE, CHAIN) == Overlap(device_blocks=1, host_blocks=2)
    assert index.overlap(ONE, CHAIN).num_blocks == 3


def test_a_block_in_both_tiers_stays_when_one_drops_it() -> None:
    index = index_of_two()
    index.apply_kv_events([stored(ONE, 11)])
    index.apply_pic_events(ONE, host_stored(11))
    index.apply_kv_events([removed(ONE, 11)])
    assert index.overlap(ONE, CHAIN) == Overlap(host_blocks=1)
    index.apply_pic_events(
        ONE, pic(HostBlocksRemoved(block_hashes=(EngineBlockHash(11),), reason=RemovalReason.CAPACITY))
    )
    assert index.overlap(ONE, CHAIN) == Overlap()


def test_a_cleared_store_takes_no_device_block_with_it() -> None:
    index = index_of_two()
    index.apply_kv_events([stored(ONE, 11)])
    index.apply_pic_events(ONE, host_stored(12))
    index.apply_pic_events(ONE, pic(StoreCleared()))
    assert index.overlap(ONE, CHAIN) == Overlap(device_blocks=1)


def test_a_cleared_device_takes_no_stored_block_with_it() -> None:
    index = index_of_two()
    index.apply_kv_events([stored(ONE, 11)])
    index.apply_pic_events(ONE, host_stored(11))
    index.apply_kv_events([WorkerKvEvent(worker_id=ONE, event=KvEvent(event_id=EventId(3), data="cleared"))])
    assert index.overlap(ONE, CHAIN) == Overlap(host_blocks=1)


def test_events_of_a_worker_that_is_not_known_are_ignored() -> None:
    index = index_of_two()
    index.remove_worker(ONE)
    index.apply_kv_events([stored(ONE, 11)])
    index.apply_pic_events(ONE, host_stored(11))
    assert index.worker_ids() == [TWO]
    assert not index.has_all(ONE, [EngineBlockHash(11)])


def test_a_prefix_is_there_only_as_a_whole() -> None:
    index = index_of_two()
    index.apply_kv_events([stored(ONE, 11, 12)])
    assert index.has_all(ONE, CHAIN[:2])
    assert not index.has_all(ONE, CHAIN[:3])
