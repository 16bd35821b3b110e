from nebula_protocol.ids import EngineBlockHash
from pic_worker.core.device_pool import BlockTable, DevicePool


def blocks(*numbers: int) -> tuple[EngineBlockHash, ...]:
    return tuple(EngineBlockHash(number) for number in numbers)


def filled(pool: DevicePool, *numbers: int) -> BlockTable:
    """A request that computed these blocks."""
    table, _ = pool.allocate((), len(numbers))
    pool.cache(table, blocks(*numbers))
    return table


def test_named_blocks_stay_cached_when_their_request_ends() -> None:
    pool = DevicePool(4)
    pool.release(filled(pool, 1, 2))
    assert EngineBlockHash(1) in pool
    assert (pool.num_cached, pool.num_held) == (2, 0)


def test_blank_blocks_are_taken_before_cached_ones() -> None:
    pool = DevicePool(4)
    pool.release(filled(pool, 1, 2))
    _, evicted = pool.allocate((), 2)
    assert evicted == ()


def test_the_tail_of_the_chain_that_was_left_first_is_evicted_first() -> None:
    pool = DevicePool(4)
    pool.release(filled(pool, 1, 2))
    pool.release(filled(pool, 3, 4))
    _, evicted = pool.allocate((), 3)
    assert evicted == blocks(2, 1, 4)


def test_a_held_block_is_not_evicted() -> None:
    pool = DevicePool(3)
    filled(pool, 1)
    pool.release(filled(pool, 2, 3))
    assert pool.can_allocate((), 2)
    assert not pool.can_allocate((), 3)
    _, evicted = pool.allocate((), 2)
    assert evicted == blocks(3, 2)


def test_hits_need_no_new_block_but_are_not_free_any_more() -> None:
    pool = DevicePool(3)
    pool.release(filled(pool, 1, 2))
    assert pool.can_allocate(blocks(1, 2), 1)
    assert not pool.can_allocate(blocks(1, 2), 2)
    table, evicted = pool.allocate(blocks(1, 2), 1)
    assert (table.num_blocks, evicted) == (3, ())


def test_a_block_that_two_requests_share_is_free_when_both_have_ended() -> None:
    pool = DevicePool(2)
    first = filled(pool, 1)
    second, _ = pool.allocate(blocks(1), 0)
    pool.release(first)
    assert not pool.can_allocate((), 2)
    pool.release(second)
    assert pool.can_allocate((), 2)


def test_a_block_computed_by_two_requests_at_once_is_cached_once() -> None:
    pool = DevicePool(4)
    first, _ = pool.allocate((), 1)
    second, _ = pool.allocate((), 1)
    assert pool.cache(first, blocks(1)) == frozenset()
    assert pool.cache(second, blocks(1)) == frozenset(blocks(1))
    assert (second.shared, second.num_private) == ([], 1)
    pool.release(first)
    pool.release(second)
    assert (pool.num_cached, pool.num_held) == (1, 0)


def test_dropping_free_blocks_spares_those_in_use() -> None:
    pool = DevicePool(4)
    filled(pool, 1)
    pool.release(filled(pool, 2))
    assert pool.evict_free() == blocks(2)
    assert pool.blocks() == blocks(1)
