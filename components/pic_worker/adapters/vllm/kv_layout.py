"""How an attention backend lays keys and values out in a block of the paged cache, learnt by looking.

Backends differ (heads before tokens or after them, keys beside values or apart from them, keys permuted for a matrix
unit) and change between versions. So numbered values are written through the backend's own cache update, and the block
is read back raw; a layout that turns out to be strides along digits of token, head and dimension becomes a view.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

import torch

from pic_worker.errors import StartError

WriteKv = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Writes keys and values, each [tokens, heads, dimension], to slots [tokens] of the cache that is probed."""

CACHE_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32)

# Integers below this are exact in all of them, and a block's elements are numbered by digits of this base.
_BASE: Final = 128
_UNTOUCHED: Final = -1


@dataclass(frozen=True, slots=True)
class KvShape:
    """Of one layer on one rank, in the blocks of vLLM's block pool."""

    num_blocks: int
    block_tokens: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Digit:
    size: int
    stride: int


Digits = tuple[Digit, ...]
"""The most significant first: index i of an axis lies at the sum of its digits times their strides."""


@dataclass(frozen=True, slots=True)
class HalfLayout:
    """Where the keys, or the values, of a block lie; in elements."""

    offset: int
    tokens: Digits
    heads: Digits
    dims: Digits

    @property
    def digits(self) -> Digits:
        return self.tokens + self.heads + self.dims


@dataclass(frozen=True, slots=True)
class KvLayout:
    num_blocks: int
    """Of the backend's blocks; the block pool's may be several of them."""
    block_tokens: int
    block_stride: int
    keys: HalfLayout
    values: HalfLayout

    def view(self, cache: torch.Tensor, half: HalfLayout) -> torch.Tensor:
        """A view [blocks, digits of token, of head, of dimension]."""
        sizes = [self.num_blocks, *(digit.size for digit in half.digits)]
        strides = [self.block_stride, *(digit.stride for digit in half.digits)]
        return cache.as_strided(sizes, strides, cache.storage_offset() + half.offset)


def learn_layout(cache: torch.Tensor, shape: KvShape, write: WriteKv) -> KvLayout:
    """Overwrites block 0, which vLLM gives to no request.

    Raises:
        StartError: the layout is none that can be read.
    """
    if cache.dtype not in CACHE_DTYPES:
        raise StartError(f"PIC cannot read a KV cache of {cache.dtype}: set the KV cache's dtype to auto")
    for axis in _block_axes(cache, shape):
        layout = _learn_on_axis(cache, axis, shape, write)
        cache.select(axis, 0).zero_()
        if layout is not None:
            return layout
    raise StartError(f"PIC does not know this attention backend's KV layout: cache of shape {tuple(cache.shape)}")


def _block_axes(cache: torch.Tensor, shape: KvShape) -> Iterator[int]:
    """Axes that may number the blocks."""
    block_elements = 2 * shape.block_tokens * shape.num_kv_heads * shape.head_dim
    for axis, size in enumerate(cache.shape):
        split, rest = divmod(size, shape.num_blocks)
        is_whole = rest == 0 and split > 0 and shape.block_tokens % split == 0
        if is_whole and prod(cache.shape) // size >= block_elements // split:
            yield axis


def _learn_on_axis(cache: torch.Tensor, axis: int, shape: KvShape, write: WriteKv) -> KvLayout | None:
    num_blocks = cache.shape[axis]
    block_tokens = shape.block_tokens * shape.num_blocks // num_blocks
    table = _offsets_of(cache.select(axis, 0), (2, block_tokens, shape.num_kv_heads, shape.head_dim), write)
    if table is None:
        return None
    keys, values = _factor(table[0]), _factor(table[1])
    if keys is None or values is None:
        return None
    return KvLayout(num_blocks, block_tokens, cache.stride(axis), keys, values)


def _offsets_of(block: torch.Tensor, shape: tuple[int, int, int, int], write: WriteKv) -> torch.Tensor | None:
    """Where the block keeps its elements: int64 of `shape`, relative to the block. None: not all were found in it."""
    numbers = torch.arange(prod(shape)).view(shape)
    slots = torch.arange(shape[1], device=block.device)
    found = torch.zeros(block.shape, dtype=torch.int64)
    untouched = torch.zeros(block.shape, dtype=torch.bool)
    for place in range(_num_places(prod(shape))):
        keys, values = (numbers // _BASE**place % _BASE).to(block.device, block.dtype)
        block.fill_(_UNTOUCHED)
        write(keys, values, slots)
        raw = block.float().round().long().cpu()
        untouched |= raw < 0
        found += raw * _BASE**place
    where = _element_offsets(block)[~untouched]
    order = found[~untouched]
    if not torch.equal(order.sort().values, numbers.flatten()):
        return None
    table = torch.empty(prod(shape), dtype=torch.int64)
    table[order] = where
    return table.view(shape)


def _num_places(count: int) -> int:
    places = 1
    while _BASE**places < count:
        places += 1
    return places


def _element_offsets(block: torch.Tensor) -> torch.Tensor:
    offsets = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(block.shape, block.stride(), strict=True):
        offsets = offsets.unsqueeze(-1) + torch.arange(size) * stride
    return offsets


def _factor(table: torch.Tensor) -> HalfLayout | None:
    """From offsets [tokens, heads, dimension]; None: the three do not add up, or one is not made of digits."""
    offset = table[0, 0, 0]
    axes = (table[:, 0, 0] - offset, table[0, :, 0] - offset, table[0, 0, :] - offset)
    if not torch.equal(table, offset + axes[0][:, None, None] + axes[1][:, None] + axes[2]):
        return None
    tokens, heads, dims = (_digits(axis.tolist()) for axis in axes)
    if tokens is None or heads is None or dims is None:
        return None
    return HalfLayout(int(offset), tokens, heads, dims)


def _digits(offsets: list[int]) -> Digits | None:
    """Offsets that begin with 0 as digits; None if they are not."""
    count = len(offsets)
    if count == 1:
        return ()
    stride = offsets[1]
    run = 2
    while run < count and offsets[run] == run * stride:
        run += 1
    if count % run != 0:
        return None
    outer_offsets = offsets[::run]
    if any(offsets[i] != outer_offsets[i // run] + i % run * stride for i in range(count)):
        return None
    outer = _digits(outer_offsets)
    return None if outer is None else (*outer, Digit(run, stride))
