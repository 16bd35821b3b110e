"""The RoPE of a model that vLLM has loaded."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding, RotaryEmbeddingBase
from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding

from pic_worker.adapters.vllm.rotation import KeyRotation
from pic_worker.errors import StartError

# Exactly these: a subclass may scale by length (YaRN, LongRoPE), by content or by more than one position (M-RoPE).
_KNOWN: Final = (RotaryEmbedding, Llama3RotaryEmbedding)


def rotation_of_model(model: torch.nn.Module, layers: Sequence[Any], head_dim: int) -> KeyRotation:
    """
    Args:
        layers: the model's attention layers, whose owners rotate the keys.

    Raises:
        StartError: keys are not rotated in all layers, or not alike, or in a way that differences do not undo.
    """
    owners = _owners_of(model)
    ropes = {id(rope): rope for rope in (_rope_of(layer, owners) for layer in layers)}
    if len(ropes) != 1:
        raise StartError(f"PIC needs one rotary embedding for all layers, and the model has {len(ropes)}")
    rope = next(iter(ropes.values()))
    if type(rope) not in _KNOWN:
        raise StartError(f"PIC cannot move keys under this rotary embedding: {type(rope).__name__}")
    if rope.head_size != head_dim:
        raise StartError(f"PIC needs whole heads rotated: {rope.head_size} dimensions, cached are {head_dim}")
    # Not from the model's table of cosines, which it rounds to its own dtype.
    frequencies = rope._compute_inv_freq(rope.base)
    return KeyRotation(frequencies, is_neox=rope.is_neox_style, device=next(model.parameters()).device)


def _owners_of(model: torch.nn.Module) -> dict[int, torch.nn.Module]:
    """The module that holds each module, by the latter's id."""
    return {id(child): owner for owner in model.modules() for child in owner.children()}


def _rope_of(layer: Any, owners: Mapping[int, torch.nn.Module]) -> Any:
    owner = owners.get(id(layer))
    ropes = [] if owner is None else [module for module in owner.modules() if isinstance(module, RotaryEmbeddingBase)]
    if not ropes:
        raise StartError(f"PIC needs rotary positions in every layer, and {layer.layer_name} has none")
    return ropes[0]
