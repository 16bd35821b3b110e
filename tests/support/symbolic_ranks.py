"""Ranks that hold, instead of KV, what each slot was computed from: they find every read of what is not there."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pic_worker.adapters.vllm.orders import ChunkOrder, LoadOrder, StepOrders, StepReport
from pic_worker.core.arena_ids import SaveId


@dataclass(frozen=True, slots=True)
class Cell:
    """KV of one token."""

    token: int
    position: int
    context: bytes | None
    """Digest of all tokens up to this one, where its KV is that of a full prefill."""


Slot = tuple[int, int]
"""Block or page, and offset in it."""


SAMPLED = 7
"""Every token of every answer."""


def digest(tokens: Sequence[int]) -> bytes:
    return hashlib.sha256(repr(list(tokens)).encode()).digest()


class SymbolicRanks:
    def __init__(self, *, block_size_tokens: int, page_tokens: int) -> None:
        self._block_size_tokens = block_size_tokens
        self._page_tokens = page_tokens
        self._device: dict[Slot, Cell] = {}
        self._arena: dict[Slot, Cell] = {}
        self._loads: dict[str, tuple[LoadOrder, list[int]]] = {}
        self._tables: dict[str, list[int]] = {}
        self.num_injected = 0
        self.num_recomputed = 0

    def execute(self, output: Any, requests: Mapping[str, Any]) -> tuple[StepReport, set[str]]:
        """One step as vLLM's runner goes through it; what is reported, and the loads that are complete."""
        orders: StepOrders = output.kv_connector_metadata
        saved: set[SaveId] = set()
        received: set[str] = set()
        for block_save in orders.block_saves:
            cells = [self._device[block_save.block_id, at] for at in range(self._block_size_tokens)]
            self._write_pages(block_save.pages, cells)
            saved.add(block_save.save_id)
        if output.has_sync_kv_loads:
            self._load(orders, received)
        self._forward(output, requests)
        if not output.has_sync_kv_loads:
            self._load(orders, received)
        for save in orders.segment_saves:
            cells = [self._device[self._slot(save.block_ids, position)] for position in range(save.start, save.end)]
            assert [cell.position for cell in cells] == list(range(save.start, save.end))
            self._write_pages(save.pages, cells)
            saved.add(save.save_id)
        return StepReport(frozenset(saved)), received

    # ---- the connector's part ----

    def _load(self, orders: StepOrders, received: set[str]) -> None:
        for request_id in orders.given_up:
            assert request_id in self._loads
            del self._loads[request_id]
            received.add(request_id)
        for load in orders.loads:
            self._loads[load.request_id] = load, self._inject(load)
        for chunk in orders.chunks:
            self._compute(chunk, received)

    def _inject(self, load: LoadOrder) -> list[int]:
        """The positions to compute."""
        size = self._block_size_tokens
        at = load.start
        for block in load.block_loads:
            for offset, cell in enumerate(self._read_pages(block.pages, size)):
                assert (cell.position, cell.token) == (at + offset, load.token_ids[at + offset])
                self._device[block.block_id, offset] = cell
            at += size
        positions = {position for start, end in load.recompute for position in range(start, end)}
        injected: list[int] = []
        for injection in load.injections:
            assert at <= injection.start < injection.end <= load.end
            at = injection.end
            num_tokens = injection.skip_tokens + injection.end - injection.start
            cells = self._read_pages(injection.pages, num_tokens)[injection.skip_tokens :]
            for position, cell in zip(range(injection.start, injection.end), cells, strict=True):
                assert cell.token == load.token_ids[position]
                assert cell.position - injection.stored_position == position - injection.start + injection.skip_tokens
                self._device[self._slot(load.block_ids, position)] = Cell(cell.token, position, None)
                injected.append(position)
        self.num_injected += len(injected)
        if load.selection is not None:
            positions.update(
                [position for position in injected if position not in positions][-load.selection.num_tokens :]
            )
        assert len(positions) == load.recomputed_tokens
        return sorted(positions)

    def _compute(self, chunk: ChunkOrder, received: set[str]) -> None:
        load, positions = self._loads[chunk.request_id]
        assert chunk.last == (chunk.first + chunk.num_tokens == len(positions))
        for position in positions[chunk.first : chunk.first + chunk.num_tokens]:
            self._compute_token(load.block_ids, load.token_ids, position)
            self.num_recomputed += 1
        if chunk.last:
            del self._loads[chunk.request_id]
            for position in range(load.end):
                self._check(load.block_ids, load.token_ids, position)
            if chunk.is_async:
                received.add(chunk.request_id)

    # ---- the engine's part ----

    def _forward(self, output: Any, requests: Mapping[str, Any]) -> None:
        work: list[tuple[str, int]] = []
        for new in output.scheduled_new_reqs:
            self._tables[new.req_id] = list(new.block_ids[0])
            work.append((new.req_id, new.num_computed_tokens))
        cached = output.scheduled_cached_reqs
        for request_id, blocks, start in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            if request_id in cached.resumed_req_ids:
                self._tables[request_id] = []
            self._tables[request_id] += blocks[0] if blocks is not None else []
            work.append((request_id, start))
        # All of a step's KV is written before any of it is read: position by position does for that.
        positions = [
            (position, name)
            for name, start in work
            for position in range(start, start + output.num_scheduled_tokens[name])
        ]
        for position, name in sorted(positions):
            request = requests.get(name)
            if request is not None:
                # A step planned ahead computes a token that the scheduler does not know yet.
                tokens = [*request.all_token_ids, *([SAMPLED] * (position + 1 - request.num_tokens))]
                self._compute_token(self._tables[name], tokens, position, salt=request.cache_salt or "")

    def _compute_token(self, block_ids: Sequence[int], tokens: Sequence[int], position: int, *, salt: str = "") -> None:
        is_exact = True
        for before in range(position):
            cell = self._check(block_ids, tokens, before)
            is_exact = is_exact and cell.context is not None
            if salt.startswith("exact"):
                assert cell.context == digest(tokens[: before + 1])
        context = digest(tokens[: position + 1]) if is_exact else None
        self._device[self._slot(block_ids, position)] = Cell(tokens[position], position, context)

    def _check(self, block_ids: Sequence[int], tokens: Sequence[int], position: int) -> Cell:
        cell = self._device.get(self._slot(block_ids, position))
        assert cell is not None, f"position {position} is read before it is written"
        assert (cell.position, cell.token) == (position, tokens[position])
        if cell.context is not None:
            assert cell.context == digest(tokens[: position + 1])
        return cell

    # ---- slots ----

    def _slot(self, block_ids: Sequence[int], position: int) -> Slot:
        return block_ids[position // self._block_size_tokens], position % self._block_size_tokens

    def _write_pages(self, pages: Sequence[int], cells: Sequence[Cell]) -> None:
        assert len(pages) == -(-len(cells) // self._page_tokens)
        for at, cell in enumerate(cells):
            self._arena[pages[at // self._page_tokens], at % self._page_tokens] = cell

    def _read_pages(self, pages: Sequence[int], num_tokens: int) -> list[Cell]:
        return [self._arena[pages[at // self._page_tokens], at % self._page_tokens] for at in range(num_tokens)]
