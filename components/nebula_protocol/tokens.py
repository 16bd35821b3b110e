"""Token ids as flat arrays: the one representation used from the request to the store."""

import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nebula_protocol.errors import TokenIdsError

TokenArray = npt.NDArray[np.uint32]

TOKEN_DTYPE = np.dtype("<u4")

_MAX_ID = 2**32 - 1
_ID_RANGE = "integers between 0 and 2**32 - 1"


def as_token_array(token_ids: Sequence[int] | npt.NDArray[np.generic]) -> TokenArray:
    """Turns a request's list of ids into one array, shape [tokens].

    Raises:
        TokenIdsError: an id is not an integer between 0 and 2**32 - 1.
    """
    if isinstance(token_ids, np.ndarray):
        return _checked(token_ids)
    if isinstance(token_ids, bytes | bytearray):
        raise TokenIdsError("token ids must be a sequence of integers, not bytes")
    try:
        # array.array converts a list about 2.5 times faster than numpy and checks the range.
        return np.frombuffer(array.array("I", token_ids), dtype=TOKEN_DTYPE)
    except (TypeError, OverflowError) as error:
        raise TokenIdsError(f"token ids must be {_ID_RANGE}: {error}") from error


def _checked(token_ids: npt.NDArray[np.generic]) -> TokenArray:
    if token_ids.ndim != 1 or token_ids.dtype.kind not in "iu":
        raise TokenIdsError(f"token ids must be one row of integers, not {token_ids.dtype} of shape {token_ids.shape}")
    if token_ids.dtype != TOKEN_DTYPE and token_ids.size and not 0 <= token_ids.min() <= token_ids.max() <= _MAX_ID:
        raise TokenIdsError(f"token ids must be {_ID_RANGE}")
    return np.ascontiguousarray(token_ids, dtype=TOKEN_DTYPE)


def token_bytes(tokens: TokenArray) -> bytes:
    """The ids as little-endian bytes, 4 a token: what is hashed, stored and sent."""
    return tokens.tobytes()


def tokens_from_bytes(data: bytes) -> TokenArray:
    """Inverse of `token_bytes`.

    Raises:
        TokenIdsError: the length is not a multiple of 4.
    """
    if len(data) % TOKEN_DTYPE.itemsize:
        raise TokenIdsError(f"{len(data)} bytes are not a whole number of token ids")
    return np.frombuffer(data, dtype=TOKEN_DTYPE)
