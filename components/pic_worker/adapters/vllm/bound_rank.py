"""What a rank works with once vLLM has loaded the model and made its cache."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig

from pic_worker.adapters.vllm.arena import Arena, PageShape
from pic_worker.adapters.vllm.engine_wire import ConnectorSettings
from pic_worker.adapters.vllm.kv_layout import KvShape
from pic_worker.adapters.vllm.model_check import check_first_layers, check_keys_rotate
from pic_worker.adapters.vllm.model_rope import rotation_of_model
from pic_worker.adapters.vllm.paged_kv import PagedKv, layers_in_order
from pic_worker.adapters.vllm.rotation import KeyRotation
from pic_worker.adapters.vllm.scattered_forward import ScatteredForward
from pic_worker.errors import StartError

_PINNED_DEVICES: Final = frozenset({"cuda"})


@dataclass(frozen=True, slots=True)
class Approximation:
    """What only position-independent reuse needs, and not every model has."""

    rotation: KeyRotation
    forward: ScatteredForward


@dataclass(frozen=True, slots=True)
class BoundRank:
    kv: PagedKv
    arena: Arena
    approximation: Approximation | None
    """None where only prefix blocks are kept."""


def bind_rank(
    runner: Any,
    vllm_config: VllmConfig,
    kv_cache_config: KVCacheConfig,
    caches: Mapping[str, torch.Tensor],
    settings: ConnectorSettings,
) -> BoundRank:
    """
    Args:
        caches: by layer name, as vLLM registers them with connectors.

    Raises:
        StartError: the model, or the way it is served, is none that the connector can work with.
    """
    shape = _shape_of(kv_cache_config)
    if shape.block_tokens % settings.page_tokens != 0:
        raise StartError(f"blocks of {shape.block_tokens} tokens are not whole pages of {settings.page_tokens}")
    attention_layers = vllm_config.compilation_config.static_forward_context
    names = layers_in_order(kv_cache_config.kv_cache_groups[0].layer_names, attention_layers)
    layers = [attention_layers[name] for name in names]
    kv = PagedKv(layers, [caches[name] for name in names], shape)
    approximation = _approximation(runner, vllm_config, layers, kv, settings) if settings.pic else None
    return BoundRank(kv, _new_arena(kv, settings), approximation)


def _shape_of(kv_cache_config: KVCacheConfig) -> KvShape:
    groups = kv_cache_config.kv_cache_groups
    spec = groups[0].kv_cache_spec if len(groups) == 1 else None
    if type(spec) is not FullAttentionSpec or spec.sliding_window is not None or spec.attention_chunk_size is not None:
        kinds = ", ".join(sorted({type(group.kv_cache_spec).__name__ for group in groups}))
        raise StartError(f"PIC needs full attention in all layers, and the model's KV cache is of {kinds or 'no kind'}")
    if spec.head_size_v != spec.head_size:
        raise StartError("PIC needs keys and values of the same size")
    return KvShape(kv_cache_config.num_blocks, spec.block_size, spec.num_kv_heads, spec.head_size)


def _approximation(
    runner: Any, vllm_config: VllmConfig, layers: list[Any], kv: PagedKv, settings: ConnectorSettings
) -> Approximation:
    rotation = rotation_of_model(runner.get_model(), layers, kv.shape.head_dim)
    forward = ScatteredForward(runner, vllm_config, kv)
    check_keys_rotate(forward, kv, rotation, max_positions=vllm_config.model_config.max_model_len)
    if settings.selects:
        check_first_layers(forward, kv)
    return Approximation(rotation, forward)


def _new_arena(kv: PagedKv, settings: ConnectorSettings) -> Arena:
    page = PageShape(
        num_layers=kv.num_layers,
        page_tokens=settings.page_tokens,
        num_kv_heads=kv.shape.num_kv_heads,
        head_dim=kv.shape.head_dim,
        dtype=kv.dtype,
    )
    num_pages = settings.store_capacity_tokens // settings.page_tokens
    return Arena(page, num_pages, is_pinned=kv.device.type in _PINNED_DEVICES)
