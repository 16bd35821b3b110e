"""Block hashes of salted lineages, by Dynamo's own function."""

import numpy as np
from dynamo.llm import compute_block_hash_for_seq

from nebula_protocol.hashing import HashArray
from nebula_protocol.tokens import TokenArray


def hash_salted_blocks(tokens: TokenArray, block_size_tokens: int, lineage: str) -> HashArray:
    """`BlockHasher`: how Dynamo hashes blocks of requests with a `cache_salt`. Shape [full blocks]."""
    hashes = compute_block_hash_for_seq(tokens.tolist(), block_size_tokens, cache_namespace=lineage)
    return np.array(hashes, dtype=np.uint64)
