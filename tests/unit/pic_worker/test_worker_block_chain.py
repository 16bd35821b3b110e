from support.engine_world import BLOCK, join, passage

from nebula_protocol.hashing import hash_blocks
from pic_worker.core.block_chain import chain_blocks


def test_a_chain_names_each_full_block_with_everything_before_it() -> None:
    start, other, tail = passage(1, BLOCK), passage(2, BLOCK), passage(3, BLOCK)
    first = chain_blocks(hash_blocks(join(start, tail), BLOCK), "")
    second = chain_blocks(hash_blocks(join(other, tail), BLOCK), "")
    assert first.tokens_hashes[1] == second.tokens_hashes[1]
    assert first.hashes[1] != second.hashes[1]


def test_equal_prompts_have_equal_names_up_to_where_they_part() -> None:
    shared = passage(1, 2 * BLOCK)
    first = chain_blocks(hash_blocks(join(shared, passage(2, BLOCK)), BLOCK), "")
    second = chain_blocks(hash_blocks(join(shared, passage(3, BLOCK)), BLOCK), "")
    assert first.hashes[:2] == second.hashes[:2]
    assert first.hashes[2] != second.hashes[2]


def test_lineages_share_no_name() -> None:
    hashes = hash_blocks(passage(1, 8 * BLOCK), BLOCK)
    assert not set(chain_blocks(hashes, "").hashes) & set(chain_blocks(hashes, "exact").hashes)


def test_names_are_the_same_as_signed_and_as_unsigned_64_bit_integers() -> None:
    names = chain_blocks(hash_blocks(passage(1, 64 * BLOCK), BLOCK), "").hashes
    assert len(names) == 64
    assert all(0 <= name < 2**63 for name in names)


def test_a_prompt_without_a_full_block_has_no_names() -> None:
    assert chain_blocks(hash_blocks(passage(1, BLOCK - 1), BLOCK), "").hashes == ()
