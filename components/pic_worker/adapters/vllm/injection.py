"""Fills a request's blocks from the arena: prefix blocks as they were, segments at their new positions."""

from dataclasses import dataclass

import torch

from pic_worker.adapters.vllm.arena import Arena
from pic_worker.adapters.vllm.orders import LoadOrder
from pic_worker.adapters.vllm.paged_kv import PagedKv
from pic_worker.adapters.vllm.rotation import KeyRotation


@dataclass(frozen=True, slots=True)
class Placement:
    """Tokens of a load that come from the arena; int64 [tokens], on the host."""

    rows: torch.Tensor
    positions: torch.Tensor
    differences: torch.Tensor
    """New less stored positions."""

    def __len__(self) -> int:
        return len(self.rows)


def placed_blocks(order: LoadOrder, arena: Arena, block_tokens: int) -> Placement:
    index_of = {block_id: index for index, block_id in enumerate(order.block_ids)}
    pieces = []
    for block in order.block_loads:
        start = index_of[block.block_id] * block_tokens
        rows = arena.rows_of(block.pages, block_tokens)
        pieces.append(_placement(rows, start, start + block_tokens, difference=0))
    return _join(pieces)


def placed_segments(order: LoadOrder, arena: Arena) -> Placement:
    pieces = []
    for injection in order.injections:
        start, end, skip = injection.start, injection.end, injection.skip_tokens
        rows = arena.rows_of(injection.pages, end - start, skip_tokens=skip)
        pieces.append(_placement(rows, start, end, difference=start - skip - injection.stored_position))
    return _join(pieces)


def write_blocks(order: LoadOrder, placement: Placement, arena: Arena, kv: PagedKv) -> None:
    """Writes keys and values of all layers, every bit as it was saved."""
    if len(placement) == 0:
        return
    slots = kv.slots_of(order.block_ids, placement.positions)
    for layer in range(kv.num_layers):
        keys, values = arena.read(layer, placement.rows)
        kv.write(layer, slots, keys.to(kv.device), values.to(kv.device))


def write_segments(order: LoadOrder, placement: Placement, arena: Arena, kv: PagedKv, rotation: KeyRotation) -> None:
    """Writes keys and values of all layers, keys turned to their new positions."""
    if len(placement) == 0:
        return
    slots = kv.slots_of(order.block_ids, placement.positions)
    turn = rotation.turn(placement.differences)
    for layer in range(kv.num_layers):
        keys, values = arena.read(layer, placement.rows)
        kv.write(layer, slots, turn.apply(keys.to(kv.device)), values.to(kv.device))


def _placement(rows: torch.Tensor, start: int, end: int, *, difference: int) -> Placement:
    positions = torch.arange(start, end)
    return Placement(rows, positions, torch.full_like(positions, difference))


def _join(pieces: list[Placement]) -> Placement:
    nothing = torch.empty(0, dtype=torch.int64)
    return Placement(
        torch.cat([nothing, *(piece.rows for piece in pieces)]),
        torch.cat([nothing, *(piece.positions for piece in pieces)]),
        torch.cat([nothing, *(piece.differences for piece in pieces)]),
    )
