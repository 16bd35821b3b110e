"""Laws of token arrays, segment hashes and prefix keys."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nebula_protocol.hashing import (
    HashArray,
    accumulate_prefix,
    hash_block,
    hash_blocks,
    hash_segment,
    hash_segments,
    prefix_keys,
)
from nebula_protocol.tokens import as_token_array, token_bytes, tokens_from_bytes

HASHES = st.integers(0, 2**64 - 1)
CHAINS = st.lists(HASHES, min_size=1, max_size=40)
TOKEN_IDS = st.lists(st.integers(0, 2**32 - 1), max_size=100)


def chain(values: list[int]) -> HashArray:
    return np.array(values, dtype=np.uint64)


@given(token_ids=TOKEN_IDS)
def test_tokens_come_back_from_their_bytes(token_ids: list[int]) -> None:
    tokens = as_token_array(token_ids)
    assert tokens.tolist() == token_ids
    assert tokens_from_bytes(token_bytes(tokens)).tolist() == token_ids
    assert as_token_array(np.array(token_ids, dtype=np.int64)).tolist() == token_ids


@given(token_ids=TOKEN_IDS, block_size_tokens=st.integers(1, 40))
def test_blocks_are_hashed_each_by_itself(token_ids: list[int], block_size_tokens: int) -> None:
    tokens = as_token_array(token_ids)
    full = range(0, len(token_ids) - block_size_tokens + 1, block_size_tokens)
    expected = [hash_block(tokens[start : start + block_size_tokens]) for start in full]
    assert hash_blocks(tokens, block_size_tokens).tolist() == expected


@given(token_ids=TOKEN_IDS, bounds=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=8))
def test_segments_hashed_together_have_the_hashes_they_have_alone(
    token_ids: list[int], bounds: list[tuple[int, int]]
) -> None:
    tokens = as_token_array(token_ids)
    spans = [(min(pair), max(pair)) for pair in bounds]
    assert hash_segments(tokens, spans) == [hash_segment(tokens[start:end]) for start, end in spans]


@given(first=TOKEN_IDS, second=TOKEN_IDS)
def test_segments_share_a_hash_exactly_if_their_tokens_are_equal(first: list[int], second: list[int]) -> None:
    same = hash_segment(as_token_array(first)) == hash_segment(as_token_array(second))
    assert same == (first == second)


@given(values=CHAINS, data=st.data())
def test_a_chain_continued_from_its_middle_equals_the_whole(values: list[int], data: st.DataObject) -> None:
    middle = data.draw(st.integers(1, len(values)))
    whole = accumulate_prefix(chain(values))
    first = accumulate_prefix(chain(values[:middle]))
    second = accumulate_prefix(chain(values[middle:]), parent_accumulator=int(first[-1]), start_block=middle)
    assert np.concatenate([first, second]).tolist() == whole.tolist()


@given(values=CHAINS, other=HASHES, data=st.data())
def test_prefixes_differ_from_the_first_different_block_on(values: list[int], other: int, data: st.DataObject) -> None:
    changed_at = data.draw(st.integers(0, len(values) - 1))
    changed = [*values[:changed_at], other, *values[changed_at + 1 :]]
    keys = prefix_keys(accumulate_prefix(chain(values)))
    changed_keys = prefix_keys(accumulate_prefix(chain(changed)))
    assert keys[:changed_at].tolist() == changed_keys[:changed_at].tolist()
    if other != values[changed_at]:
        assert np.all(keys[changed_at:] != changed_keys[changed_at:])


@given(first=CHAINS, second=CHAINS)
def test_prompts_that_differ_in_many_blocks_share_the_keys_of_their_common_prefix_only(
    first: list[int], second: list[int]
) -> None:
    common = next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    first_keys = prefix_keys(accumulate_prefix(chain(first))).tolist()
    second_keys = prefix_keys(accumulate_prefix(chain(second))).tolist()
    assert first_keys[:common] == second_keys[:common]
    assert not set(first_keys[common:]) & set(second_keys[common:])


@given(values=st.lists(HASHES, min_size=2, max_size=40, unique=True), data=st.data())
def test_the_order_of_blocks_counts(values: list[int], data: st.DataObject) -> None:
    left = data.draw(st.integers(0, len(values) - 2))
    right = data.draw(st.integers(left + 1, len(values) - 1))
    swapped = values.copy()
    swapped[left], swapped[right] = values[right], values[left]
    keys = prefix_keys(accumulate_prefix(chain(values)))
    swapped_keys = prefix_keys(accumulate_prefix(chain(swapped)))
    assert np.all(keys[left:] != swapped_keys[left:])


@given(values=CHAINS, salt=HASHES, other_salt=HASHES)
def test_a_prefix_has_one_key_under_each_salt(values: list[int], salt: int, other_salt: int) -> None:
    accumulators = accumulate_prefix(chain(values))
    same = prefix_keys(accumulators, salt) == prefix_keys(accumulators, other_salt)
    assert np.all(same == (salt == other_salt))
