"""Weights on their way from GGUF to a Hugging Face checkpoint."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from nebula_serve.smollm2.weights import to_bfloat16, unpermuted, write_safetensors


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (0.0, 0x0000),
        (1.0, 0x3F80),
        (-2.0, 0xC000),
        # bfloat16 has 7 bits behind the point: 1 + 2**-8 lies half-way between 1 and 1 + 2**-7, the even one is 1.
        (1 + 2**-8, 0x3F80),
        # Half-way between 1 + 2**-7 (odd) and 1 + 2**-6 (even).
        (1 + 3 * 2**-8, 0x3F82),
        # Just over half-way.
        (1 + 2**-8 + 2**-20, 0x3F81),
    ],
)
def test_numbers_become_the_nearest_bfloat16_and_ties_the_even_one(value: float, bits: int) -> None:
    assert to_bfloat16(np.array([value], np.float32)).tolist() == [bits]


def test_queries_come_back_from_the_order_of_the_file() -> None:
    """The converter of llama.cpp puts row i of a head's first half beside row i of its second half."""
    num_heads, head_dim, hidden = 3, 4, 2
    original = np.arange(num_heads * head_dim * hidden, dtype=np.float32).reshape(num_heads * head_dim, hidden)
    in_file = np.concatenate(
        [original[head * head_dim :][[0, 2, 1, 3]] for head in range(num_heads)]  # halves (0, 1) and (2, 3) in turn
    )
    assert not np.array_equal(in_file, original)
    assert np.array_equal(unpermuted(in_file, num_heads), original)


def test_a_checkpoint_is_a_header_and_the_tensors_one_after_the_other(tmp_path: Path) -> None:
    first: NDArray[np.uint16] = np.arange(6, dtype=np.uint16).reshape(2, 3)
    second: NDArray[np.uint16] = np.array([7], np.uint16)
    write_safetensors({"first": first, "second": second}, tmp_path / "model.safetensors")
    content = (tmp_path / "model.safetensors").read_bytes()
    header_bytes = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + header_bytes])
    # 6 numbers of 2 bytes, then one.
    assert header["first"] == {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}
    assert header["second"] == {"dtype": "BF16", "shape": [1], "data_offsets": [12, 14]}
    assert content[8 + header_bytes :] == first.tobytes() + second.tobytes()
    assert header_bytes % 8 == 0
