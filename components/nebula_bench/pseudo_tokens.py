"""Token ids for traces whose text is not published: deterministic per segment id, the same on every machine."""

from dataclasses import dataclass

import numpy as np
import xxhash

from nebula_protocol.tokens import TOKEN_DTYPE, TokenArray


@dataclass(frozen=True, slots=True)
class PseudoVocabulary:
    """Ids are drawn uniformly from [first_id, end_id).

    The default keeps clear of special tokens and single bytes and fits the `sim` model's tokenizer (8,192 ids) as well
    as every larger one.
    """

    first_id: int = 1_000
    end_id: int = 8_000

    def __post_init__(self) -> None:
        if not 0 <= self.first_id < self.end_id:
            raise ValueError(f"no token id lies in [{self.first_id}, {self.end_id})")

    def tokens(self, segment_id: str, num_tokens: int) -> TokenArray:
        """The content that `segment_id` names, shape [num_tokens]; a longer one begins with the shorter."""
        raw = np.random.PCG64(xxhash.xxh3_64_intdigest(segment_id.encode())).random_raw(num_tokens)
        return (self.first_id + raw % np.uint64(self.end_id - self.first_id)).astype(TOKEN_DTYPE)
