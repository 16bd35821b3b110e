"""Moving keys against vLLM's own rotary embeddings."""

from collections.abc import Mapping

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

from pic_worker.adapters.vllm.model_rope import rotation_of_model
from pic_worker.adapters.vllm.rotation import KeyRotation
from pic_worker.errors import StartError

pytestmark = pytest.mark.integration

HEADS, DIMS, POSITIONS = 3, 64, 32_768
LLAMA_31 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# An fp32 angle near 30,000 is off by up to 0.002, and vLLM rotates by two of them.
FP32_ANGLE = 5e-3


class Attention(torch.nn.Module):
    layer_name = "layers.0.attention"


class Layer(torch.nn.Module):
    """As models have it: the attention and the rotation of its keys in one module."""

    def __init__(self, rope: torch.nn.Module | None) -> None:
        super().__init__()
        self.attention = Attention()
        self.projection = torch.nn.Linear(1, 1)
        if rope is not None:
            self.rotary_emb = rope


def rope_of(
    parameters: Mapping[str, object], *, is_neox: bool = True, dtype: torch.dtype = torch.float32
) -> torch.nn.Module:
    with set_current_vllm_config(VllmConfig()):
        return get_rope(DIMS, POSITIONS, is_neox, dict(parameters), dtype)


def rotation_in(*ropes: torch.nn.Module | None, head_dim: int = DIMS) -> KeyRotation:
    model = torch.nn.ModuleList(Layer(rope) for rope in ropes)
    return rotation_of_model(model, [layer.attention for layer in model], head_dim)


def rotated(rope: torch.nn.Module, keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    flat = keys.flatten(1)
    _, found = rope.forward_native(positions, flat.clone(), flat.clone())  # type: ignore[operator]
    return torch.as_tensor(found).view(keys.shape)


@pytest.mark.parametrize("is_neox", [True, False], ids=["halves", "interleaved"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"rope_type": "default", "rope_theta": 10_000.0},
        {"rope_type": "default", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.5},
        LLAMA_31,
    ],
    ids=["default", "partial", "llama3"],
)
def test_moved_keys_are_those_that_vllm_rotates_to_the_new_position(
    parameters: Mapping[str, object], is_neox: bool
) -> None:
    rope = rope_of(parameters, is_neox=is_neox)
    keys = torch.randn(4, HEADS, DIMS)
    old, new = torch.tensor([0, 5, 20_000, 31_000]), torch.tensor([7_000, 5, 100, 31_999])
    moved = rotation_in(rope).turn(new - old).apply(rotated(rope, keys, old))
    assert torch.allclose(moved, rotated(rope, keys, new), atol=FP32_ANGLE)


def test_frequencies_are_not_taken_from_a_rounded_table() -> None:
    exact, rounded = (rope_of(LLAMA_31, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    keys, difference = torch.randn(1, HEADS, DIMS), torch.tensor([12_345])
    assert torch.equal(
        rotation_in(rounded).turn(difference).apply(keys), rotation_in(exact).turn(difference).apply(keys)
    )


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}, "YaRN"),
        ({"rope_type": "default", "mrope_section": [16, 8, 8]}, "MRotary"),
        ({"rope_type": "linear", "factor": 4.0}, "Linear"),
    ],
    ids=["yarn", "mrope", "linear"],
)
def test_other_ways_to_rotate_are_refused_by_name(parameters: Mapping[str, object], name: str) -> None:
    rope = rope_of({"rope_theta": 10_000.0, **parameters})
    with pytest.raises(StartError, match=name):
        rotation_in(rope)


def test_layers_that_rotate_differently_or_not_at_all_are_refused() -> None:
    near, far = (rope_of({"rope_type": "default", "rope_theta": theta}) for theta in (10_000.0, 1_000_000.0))
    with pytest.raises(StartError, match="one rotary embedding"):
        rotation_in(near, far)
    with pytest.raises(StartError, match="in every layer"):
        rotation_in(near, None)
    with pytest.raises(StartError, match="whole heads"):
        rotation_in(near, head_dim=2 * DIMS)
