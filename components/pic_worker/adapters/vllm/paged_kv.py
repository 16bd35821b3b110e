"""vLLM's paged cache, read and written by token."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pic_worker.adapters.vllm.kv_layout import HalfLayout, KvLayout, KvShape, learn_layout
from pic_worker.errors import StartError


class PagedKv:
    """All layers of one rank, in the model's order.

    Writing goes through the attention backend's own cache update, the one that the model uses.
    """

    def __init__(self, layers: Sequence[Any], caches: Sequence[torch.Tensor], shape: KvShape) -> None:
        """
        Args:
            layers: vLLM's attention layers.
            caches: of each layer, as vLLM registers them with connectors.

        Raises:
            StartError: the backend cannot write apart from its attention, or lays the KV out in an unknown way.
        """
        self._layers = layers
        self._caches = caches
        self._block_tokens = shape.block_tokens
        self._shape = shape
        _require_alike(layers, caches)
        layout = learn_layout(caches[0], shape, lambda keys, values, slots: self.write(0, slots, keys, values))
        self._layout = layout
        self._split = layout.num_blocks // shape.num_blocks
        self._keys = [layout.view(cache, layout.keys) for cache in caches]
        self._values = [layout.view(cache, layout.values) for cache in caches]

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def layer_names(self) -> list[str]:
        """As vLLM knows the attention layers, in the model's order."""
        return [layer.layer_name for layer in self._layers]

    @property
    def shape(self) -> KvShape:
        return self._shape

    @property
    def layout(self) -> KvLayout:
        return self._layout

    @property
    def device(self) -> torch.device:
        return self._caches[0].device

    @property
    def dtype(self) -> torch.dtype:
        return self._caches[0].dtype

    def slots_of(self, block_ids: Sequence[int], positions: torch.Tensor) -> torch.Tensor:
        """Where tokens lie: int64 on the cache's device.

        Raises:
            IndexError: a position lies beyond the block table.
        """
        table = torch.tensor(block_ids, dtype=torch.int64)
        slots = table[positions // self._block_tokens] * self._block_tokens + positions % self._block_tokens
        return slots.to(self.device)

    def backend_blocks(self, block_ids: Sequence[int]) -> torch.Tensor:
        """A block table in the backend's own, possibly smaller, blocks: int64, on the host."""
        table = torch.tensor(block_ids, dtype=torch.int64)
        return (table[:, None] * self._split + torch.arange(self._split)).flatten()

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keys and values: each [tokens, heads, dimension]."""
        attention = self._layers[layer]
        attention.impl.do_kv_cache_update(attention, keys, values, self._caches[layer], slots)

    def read(self, layer: int, block_ids: Sequence[int], start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a request's tokens [start, end), each [tokens, heads, dimension], as copies."""
        size = self._layout.block_tokens
        first, last = start // size, (end - 1) // size
        pooled = block_ids[first // self._split : last // self._split + 1]
        skipped = first - first // self._split * self._split
        blocks = self.backend_blocks(pooled)[skipped : skipped + last - first + 1].to(self.device)
        inside = slice(start - first * size, end - first * size)
        return (
            self._read_half(self._keys[layer], self._layout.keys, blocks)[inside],
            self._read_half(self._values[layer], self._layout.values, blocks)[inside],
        )

    def _read_half(self, view: torch.Tensor, half: HalfLayout, blocks: torch.Tensor) -> torch.Tensor:
        return view.index_select(0, blocks).reshape(-1, self._shape.num_kv_heads, self._shape.head_dim)


def layers_in_order(names: Sequence[str], layers: Mapping[str, Any]) -> list[str]:
    """Names of attention layers in the order in which vLLM made them, which is the model's."""
    wanted = set(names)
    return [name for name in layers if name in wanted]


def _require_alike(layers: Sequence[Any], caches: Sequence[torch.Tensor]) -> None:
    first = caches[0]
    for attention, cache in zip(layers, caches, strict=True):
        if not hasattr(attention.impl, "do_kv_cache_update"):
            name = attention.get_attn_backend().get_name()
            raise StartError(f"PIC needs an attention backend that can write KV by itself, which {name} cannot")
        if cache.shape != first.shape or cache.stride() != first.stride() or cache.dtype != first.dtype:
            raise StartError("PIC needs the same KV layout in all layers of the model")
