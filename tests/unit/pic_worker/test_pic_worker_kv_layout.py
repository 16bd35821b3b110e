"""Layouts of attention backends, learnt from what they write."""

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from pic_worker.adapters.vllm.kv_layout import KvLayout, KvShape, learn_layout
from pic_worker.errors import StartError

BLOCKS, TOKENS, HEADS, DIMS = 5, 8, 2, 16
SHAPE = KvShape(BLOCKS, TOKENS, HEADS, DIMS)

Places = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]
"""Of a cache and a token's slot: its keys and values, each [heads, dimension]."""


def heads_first(cache: torch.Tensor, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[blocks, heads, tokens, 2 dimensions], keys beside values: FlashAttention in vLLM 0.32."""
    row = cache[slot // TOKENS, :, slot % TOKENS]
    return row[:, :DIMS], row[:, DIMS:]


def halves_first(cache: torch.Tensor, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[2, blocks, tokens, heads, dimensions]: FlashAttention before."""
    return cache[0, slot // TOKENS, slot % TOKENS], cache[1, slot // TOKENS, slot % TOKENS]


def small_blocks(cache: torch.Tensor, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[4 blocks, 2, tokens / 4, heads, dimensions]: a backend with smaller blocks than the pool's."""
    size = TOKENS // 4
    return cache[slot // size, 0, slot % size], cache[slot // size, 1, slot % size]


def keys_by_dimension(cache: torch.Tensor, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [dimension, token], values [token, dimension] in a block's halves: vLLM's vector units on CPUs."""
    block = cache[slot // TOKENS].view(HEADS, 2, TOKENS * DIMS)
    keys, values = block[:, 0].view(HEADS, DIMS, TOKENS), block[:, 1].view(HEADS, TOKENS, DIMS)
    return keys[:, :, slot % TOKENS], values[:, slot % TOKENS]


def keys_in_pairs(cache: torch.Tensor, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [dimension / 2, token, 2], as matrix units read them."""
    block = cache[slot // TOKENS].view(HEADS, 2, TOKENS * DIMS)
    keys, values = block[:, 0].view(HEADS, DIMS // 2, TOKENS, 2), block[:, 1].view(HEADS, TOKENS, DIMS)
    return keys[:, :, slot % TOKENS], values[:, slot % TOKENS]


def writer(cache: torch.Tensor, places: Places) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        for index, slot in enumerate(slots.tolist()):
            key_place, value_place = places(cache, slot)
            key_place.copy_(keys[index].view(key_place.shape))
            value_place.copy_(values[index].view(value_place.shape))

    return write


def read(layout: KvLayout, cache: torch.Tensor, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    halves = [layout.view(cache, half).reshape(-1, HEADS, DIMS) for half in (layout.keys, layout.values)]
    return halves[0][:num_tokens], halves[1][:num_tokens]


@pytest.mark.parametrize(
    ("cache_shape", "places"),
    [
        ((BLOCKS, HEADS, TOKENS, 2 * DIMS), heads_first),
        ((2, BLOCKS, TOKENS, HEADS, DIMS), halves_first),
        ((4 * BLOCKS, 2, TOKENS // 4, HEADS, DIMS), small_blocks),
        ((BLOCKS, HEADS, TOKENS, 2 * DIMS), keys_by_dimension),
        ((BLOCKS, HEADS, TOKENS, 2 * DIMS), keys_in_pairs),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_layout_is_learnt_and_reads_what_was_written(
    cache_shape: tuple[int, ...], places: Places, dtype: torch.dtype
) -> None:
    cache = torch.zeros(cache_shape, dtype=dtype)
    write = writer(cache, places)
    layout = learn_layout(cache, SHAPE, write)
    keys, values = torch.randn(2, BLOCKS * TOKENS, HEADS, DIMS).to(dtype)
    write(keys, values, torch.arange(BLOCKS * TOKENS))
    found_keys, found_values = read(layout, cache, BLOCKS * TOKENS)
    assert torch.equal(found_keys, keys)
    assert torch.equal(found_values, values)


def test_a_layout_with_heads_apart_in_memory_is_learnt() -> None:
    """A cache may be a view whose axes are stored in another order, with room between its blocks."""
    stored = torch.zeros(BLOCKS, TOKENS + 1, HEADS, 2 * DIMS)
    cache = stored.transpose(1, 2)[:, :, :TOKENS]
    write = writer(cache, heads_first)
    layout = learn_layout(cache, SHAPE, write)
    keys, values = torch.randn(2, 3 * TOKENS, HEADS, DIMS)
    write(keys, values, torch.arange(3 * TOKENS))
    assert torch.equal(read(layout, cache, 3 * TOKENS)[0], keys)


def test_learning_leaves_all_blocks_but_the_first_alone() -> None:
    cache = torch.full((BLOCKS, HEADS, TOKENS, 2 * DIMS), 3.0)
    learn_layout(cache, SHAPE, writer(cache, heads_first))
    assert (cache[1:] == 3.0).all()


def test_a_layout_that_loses_values_is_refused() -> None:
    cache = torch.zeros(BLOCKS, HEADS, TOKENS, 2 * DIMS)

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        writer(cache, heads_first)(keys, keys, slots)

    with pytest.raises(StartError, match="KV layout"):
        learn_layout(cache, SHAPE, write)


def test_a_layout_without_a_pattern_is_refused() -> None:
    cache = torch.zeros(BLOCKS, HEADS, TOKENS, 2 * DIMS)
    shuffled = torch.randperm(TOKENS * DIMS, generator=torch.Generator().manual_seed(0))

    def write(keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        block = cache[0].view(HEADS, 2, TOKENS * DIMS)
        block[:, 0, shuffled] = keys.transpose(0, 1).reshape(HEADS, -1)
        block[:, 1] = values.transpose(0, 1).reshape(HEADS, -1)

    with pytest.raises(StartError, match="KV layout"):
        learn_layout(cache, SHAPE, write)


def test_a_quantised_cache_is_refused() -> None:
    cache = torch.zeros(BLOCKS, HEADS, TOKENS, 2 * DIMS, dtype=torch.uint8)
    with pytest.raises(StartError, match="auto"):
        learn_layout(cache, SHAPE, writer(cache, heads_first))
