"""Nebula's block hashes are Dynamo's: prefix blocks of both must meet in one index."""

import numpy as np
import pytest
from dynamo.llm import compute_block_hash_for_seq
from hypothesis import given, settings
from hypothesis import strategies as st

from nebula_protocol.hashing import hash_block, hash_blocks
from nebula_protocol.tokens import as_token_array

BLOCK_SIZES = (1, 2, 4, 16, 32, 48, 64, 128, 256)
"""Tokens. XXH3 has a way of its own for each: up to 8, 16, 128 and 240 bytes, and more."""
TOKEN_IDS = st.lists(st.integers(0, 2**32 - 1), max_size=600)


@pytest.mark.parametrize("block_size_tokens", BLOCK_SIZES)
@given(token_ids=TOKEN_IDS)
@settings(deadline=None)
def test_every_block_has_the_hash_that_dynamo_gives_it(block_size_tokens: int, token_ids: list[int]) -> None:
    expected = compute_block_hash_for_seq(token_ids, block_size_tokens)
    assert hash_blocks(as_token_array(token_ids), block_size_tokens).tolist() == expected


@pytest.mark.parametrize("block_size_tokens", BLOCK_SIZES)
def test_a_long_prompt_has_the_hashes_that_dynamo_gives_it(block_size_tokens: int) -> None:
    token_ids = np.random.default_rng(block_size_tokens).integers(0, 151_936, 32_000).tolist()
    expected = compute_block_hash_for_seq(token_ids, block_size_tokens)
    # 32,000 tokens hold 32,000 // 48 = 666 blocks of 48 and a rest of 32 tokens, which has no hash.
    assert len(expected) == 32_000 // block_size_tokens
    assert hash_blocks(as_token_array(token_ids), block_size_tokens).tolist() == expected


@pytest.mark.parametrize("block_size_tokens", BLOCK_SIZES)
def test_a_single_block_has_the_hash_that_dynamo_gives_it(block_size_tokens: int) -> None:
    token_ids = list(range(7, 7 + block_size_tokens))
    assert [hash_block(as_token_array(token_ids))] == compute_block_hash_for_seq(token_ids, block_size_tokens)


def test_a_namespace_changes_dynamos_hashes_so_salted_lineages_must_be_hashed_by_dynamo_itself() -> None:
    token_ids = list(range(64))
    salted = compute_block_hash_for_seq(token_ids, 16, cache_namespace="exact/")
    assert not set(salted) & set(hash_blocks(as_token_array(token_ids), 16).tolist())
