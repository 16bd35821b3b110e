import numpy as np
import xxhash

from nebula_protocol.hashing import (
    accumulate_prefix,
    hash_block,
    hash_blocks,
    hash_segment,
    hash_segments,
    prefix_keys,
    salt_of,
)
from nebula_protocol.tokens import as_token_array


def test_a_partial_last_block_has_no_hash() -> None:
    assert hash_blocks(as_token_array(range(15)), 16).shape == (0,)
    assert hash_blocks(as_token_array(range(47)), 16).shape == (2,)


def test_zeros_are_hashed_with_their_number() -> None:
    zeros = as_token_array([0] * 8)
    assert hash_blocks(zeros, 4).tolist() == [hash_block(zeros[:4])] * 2
    assert hash_block(zeros[:4]) != hash_block(zeros[:5])


def test_blocks_of_a_strided_array_are_hashed_by_their_tokens() -> None:
    tokens = as_token_array(range(64))
    assert hash_blocks(tokens[::2], 16).tolist() == hash_blocks(as_token_array(range(0, 64, 2)), 16).tolist()


def test_a_segment_hash_is_128_bits_of_xxh3_over_little_endian_ids() -> None:
    assert hash_segment(as_token_array([1, 2])) == xxhash.xxh3_128_digest(b"\x01\0\0\0\x02\0\0\0")
    assert len(hash_segment(as_token_array([1]))) == 16


def test_no_segments_have_no_hashes() -> None:
    assert hash_segments(as_token_array([1, 2]), []) == []


def test_a_chain_of_no_blocks_has_no_keys() -> None:
    assert prefix_keys(accumulate_prefix(np.array([], dtype=np.uint64))).shape == (0,)


def test_a_block_has_another_key_at_another_depth() -> None:
    block = np.array([7], dtype=np.uint64)
    assert accumulate_prefix(block)[0] != accumulate_prefix(block, start_block=1)[0]


def test_an_unnamed_domain_has_no_salt_and_names_have_different_ones() -> None:
    assert salt_of("") == 0
    assert len({salt_of(""), salt_of("a"), salt_of("b")}) == 3
