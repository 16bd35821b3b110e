"""Hashes of blocks, prefixes and segments. Everything that is hashed is hashed once per request."""

from collections.abc import Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt
import xxhash

from nebula_protocol.ids import BlockHash, SegmentHash
from nebula_protocol.tokens import TOKEN_DTYPE, TokenArray, token_bytes

HashArray = npt.NDArray[np.uint64]

# Dynamo hashes blocks with XXH3-64 and this seed; checked against its own function in the tests.
_BLOCK_SEED = 1337
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# Every prompt needs the salts of its depths; those of all but the longest are made once.
_FIRST_DEPTH_SALTS = np.arange(4096, dtype=np.uint64) * _GOLDEN


def hash_blocks(tokens: TokenArray, block_size_tokens: int) -> HashArray:
    """Hash of each full block by itself, shape [tokens // block_size_tokens]; a partial last block has none."""
    num_blocks = len(tokens) // block_size_tokens
    full = np.ascontiguousarray(tokens[: num_blocks * block_size_tokens], dtype=TOKEN_DTYPE)
    # A view of untyped items hands out all blocks as bytes objects in one call, and `map` and `join` loop in C: a third
    # of the time of slicing in Python.
    blocks = full.view(f"V{block_size_tokens * TOKEN_DTYPE.itemsize}").tolist()
    digests = b"".join(map(xxhash.xxh3_64_digest, blocks, repeat(_BLOCK_SEED)))
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)


def hash_block(tokens: TokenArray) -> BlockHash:
    """Hash of one block's tokens, equal to Dynamo's `tokens_hash`."""
    return BlockHash(xxhash.xxh3_64_intdigest(token_bytes(tokens), _BLOCK_SEED))


def hash_segment(tokens: TokenArray) -> SegmentHash:
    """The content key of a segment: 128 bits over its token ids, independent of where it stands."""
    return SegmentHash(xxhash.xxh3_128_digest(token_bytes(tokens)))


def hash_segments(tokens: TokenArray, spans: Sequence[tuple[int, int]]) -> list[SegmentHash]:
    """`hash_segment` of each [start, end), with one copy of the prompt's bytes for all."""
    data = token_bytes(tokens)
    width = TOKEN_DTYPE.itemsize
    return [SegmentHash(xxhash.xxh3_128_digest(data[start * width : end * width])) for start, end in spans]


def accumulate_prefix(block_hashes: HashArray, *, parent_accumulator: int = 0, start_block: int = 0) -> HashArray:
    """Running accumulators of a chain of blocks, shape [blocks]; the last one continues the chain.

    A block contributes its hash mixed with its depth, and contributions add up modulo 2**64, so the keys of all
    prefixes come from one cumulative sum instead of a loop. Order counts because depth is mixed in.
    """
    mixed = _mix64(block_hashes + _depth_salts(start_block, len(block_hashes)))
    accumulators = np.add.accumulate(mixed, out=mixed)
    accumulators += np.uint64(parent_accumulator)
    return accumulators


def prefix_keys(accumulators: HashArray, domain_salt: int = 0) -> HashArray:
    """Keys of the prefixes that end at each block, shape [blocks]. Different salts give a prefix different keys."""
    return _mix64(accumulators ^ np.uint64(domain_salt))


def _depth_salts(start_block: int, num_blocks: int) -> HashArray:
    """One salt for each depth, shape [num_blocks]."""
    end = start_block + num_blocks
    if end <= len(_FIRST_DEPTH_SALTS):
        return _FIRST_DEPTH_SALTS[start_block:end]
    return np.arange(start_block, end, dtype=np.uint64) * _GOLDEN


def salt_of(text: str) -> int:
    """64-bit salt of a domain or tenant name; 0 for the empty name."""
    return xxhash.xxh3_64_intdigest(text.encode()) if text else 0


def _mix64(values: HashArray) -> HashArray:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection that spreads every bit."""
    mixed: HashArray = values >> np.uint64(30)
    mixed ^= values
    mixed *= _MIX_1
    mixed ^= mixed >> np.uint64(27)
    mixed *= _MIX_2
    mixed ^= mixed >> np.uint64(31)
    return mixed
