import numpy as np
import numpy.typing as npt
import pytest

from nebula_protocol.errors import TokenIdsError
from nebula_protocol.tokens import TOKEN_DTYPE, as_token_array, token_bytes, tokens_from_bytes


def test_ids_become_one_row_of_32_bit_integers() -> None:
    tokens = as_token_array([0, 1, 2**32 - 1])
    assert tokens.dtype == TOKEN_DTYPE
    assert tokens.tolist() == [0, 1, 2**32 - 1]


def test_an_empty_prompt_is_an_empty_array() -> None:
    assert as_token_array([]).shape == tokens_from_bytes(b"").shape == (0,)


@pytest.mark.parametrize("wrong", [[-1], [2**32], [1, "2"], [1.0], [None], [[1]], "12", b"\x01\x00\x00\x00"])
def test_anything_but_small_integers_is_refused(wrong: list[int]) -> None:
    with pytest.raises(TokenIdsError):
        as_token_array(wrong)


@pytest.mark.parametrize(
    "wrong", [np.array([-1]), np.array([2**32]), np.array([1.0]), np.array([[1, 2]]), np.array([True])]
)
def test_arrays_are_not_wrapped_around_or_rounded(wrong: npt.NDArray[np.generic]) -> None:
    with pytest.raises(TokenIdsError):
        as_token_array(wrong)


def test_arrays_of_other_widths_are_converted() -> None:
    for dtype in (np.int64, np.uint16, ">u4"):
        tokens = as_token_array(np.array([1, 300], dtype=dtype))
        assert (tokens.dtype, tokens.tolist()) == (TOKEN_DTYPE, [1, 300])


def test_bytes_are_four_a_token_with_the_low_one_first() -> None:
    assert token_bytes(as_token_array([1, 0x01020304])) == b"\x01\x00\x00\x00\x04\x03\x02\x01"


def test_bytes_that_are_no_whole_number_of_tokens_are_refused() -> None:
    with pytest.raises(TokenIdsError, match="7 bytes"):
        tokens_from_bytes(b"1234567")
