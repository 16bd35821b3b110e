"""Laws of moving rotated keys, against RoPE worked out in complex numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from pic_worker.adapters.vllm.rotation import KeyRotation

HEADS, ROTATED, KEPT = 2, 16, 8
FREQUENCIES = 10_000.0 ** -(torch.arange(0, ROTATED, 2, dtype=torch.float64) / ROTATED)
PLACES = st.integers(min_value=0, max_value=131_072)
STYLES = st.booleans()
# fp32 has 24 bits; a few roundings of values near 1.
FP32 = 1e-5
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def rotation(*, is_neox: bool) -> KeyRotation:
    return KeyRotation(FREQUENCIES.float(), is_neox=is_neox, device=torch.device("cpu"))


def keys(num_tokens: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_tokens)
    return torch.randn(num_tokens, HEADS, ROTATED + KEPT, generator=generator, dtype=torch.float64)


def at(plain: torch.Tensor, positions: list[int], *, is_neox: bool) -> torch.Tensor:
    """Rotated to positions: each pair of dimensions is a complex number, turned by its angle."""
    rotated = plain[..., :ROTATED]
    pairs = (
        torch.complex(*rotated.chunk(2, dim=-1)) if is_neox else torch.complex(rotated[..., ::2], rotated[..., 1::2])
    )
    angles = torch.tensor(positions, dtype=torch.float64)[:, None, None] * FREQUENCIES.float().double()
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    parts = (turned.real, turned.imag)
    joined = torch.cat(parts, dim=-1) if is_neox else torch.stack(parts, dim=-1).flatten(-2)
    return torch.cat([joined, plain[..., ROTATED:]], dim=-1)


def move(stored: torch.Tensor, old: list[int], new: list[int], *, is_neox: bool) -> torch.Tensor:
    differences = torch.tensor(new) - torch.tensor(old)
    return rotation(is_neox=is_neox).turn(differences).apply(stored)


@given(places=st.lists(st.tuples(PLACES, PLACES), min_size=1, max_size=6), is_neox=STYLES)
def test_a_moved_key_is_the_key_rotated_at_its_new_position(places: list[tuple[int, int]], is_neox: bool) -> None:
    old, new = [place[0] for place in places], [place[1] for place in places]
    plain = keys(len(places))
    moved = move(at(plain, old, is_neox=is_neox).float(), old, new, is_neox=is_neox)
    assert torch.allclose(moved.double(), at(plain, new, is_neox=is_neox), atol=FP32)


@given(old=PLACES, new=PLACES, is_neox=STYLES)
def test_moving_there_and_back_changes_nothing(old: int, new: int, is_neox: bool) -> None:
    stored = keys(1).float()
    there = move(stored, [old], [new], is_neox=is_neox)
    assert torch.allclose(move(there, [new], [old], is_neox=is_neox), stored, atol=FP32)


@given(stays=st.lists(st.booleans(), min_size=1, max_size=6), place=PLACES, is_neox=STYLES, dtype=DTYPES)
def test_a_key_that_stays_keeps_every_bit(stays: list[bool], place: int, is_neox: bool, dtype: torch.dtype) -> None:
    stored = keys(len(stays)).to(dtype)
    stored[..., ::3] = -0.0
    new = [place if stay else place + 5 for stay in stays]
    moved = move(stored, [place] * len(stays), new, is_neox=is_neox)
    still = torch.tensor(stays)
    assert torch.equal(moved[still].view(torch.uint8), stored[still].view(torch.uint8))


@given(old=PLACES, new=PLACES, is_neox=STYLES)
def test_dimensions_that_the_model_does_not_rotate_stay(old: int, new: int, is_neox: bool) -> None:
    stored = keys(1).to(torch.bfloat16)
    assert torch.equal(move(stored, [old], [new], is_neox=is_neox)[..., ROTATED:], stored[..., ROTATED:])


@given(old=PLACES, new=PLACES, is_neox=STYLES)
def test_a_moved_key_keeps_its_length(old: int, new: int, is_neox: bool) -> None:
    stored = keys(1).float()
    assert torch.allclose(move(stored, [old], [new], is_neox=is_neox).norm(dim=-1), stored.norm(dim=-1), rtol=FP32)
