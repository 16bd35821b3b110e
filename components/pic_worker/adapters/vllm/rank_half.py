"""The connector's half in a rank: carries out the scheduler half's orders on the KV itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import KVCacheConfig

from pic_worker.adapters.vllm.bound_rank import Approximation, BoundRank, bind_rank
from pic_worker.adapters.vllm.engine_wire import ConnectorSettings
from pic_worker.adapters.vllm.injection import placed_blocks, placed_segments, write_blocks, write_segments
from pic_worker.adapters.vllm.orders import ChunkOrder, LoadOrder, Page, SaveId, StepOrders, StepReport
from pic_worker.adapters.vllm.selection import select_positions
from pic_worker.adapters.vllm.token_runs import positions_of
from pic_worker.errors import StartError

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class LoadInProgress:
    """Everything but the recomputation is done."""

    order: LoadOrder
    positions: torch.Tensor
    """To compute again: int64, ascending, on the host."""


class RankHalf:
    """Called by the connector at the points of a step that vLLM has for it, in the order of the methods below.

    None of them is called from inside the model's forward pass, so that the passes made here may run the model.
    """

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, settings: ConnectorSettings) -> None:
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._settings = settings
        self._caches: Mapping[str, torch.Tensor] = {}
        self._rank: BoundRank | None = None
        self._loads: dict[str, LoadInProgress] = {}
        self._received: set[str] = set()
        self._saved: set[SaveId] = set()

    def register_kv_caches(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        self._caches = dict(kv_caches)

    @torch.inference_mode()
    def bind_runner(self, model_runner: Any) -> None:
        """Called on all ranks together, after `register_kv_caches` and before the first step.

        Raises:
            StartError: the model, or the way it is served, is none that the connector can work with.
        """
        rank = bind_rank(model_runner, self._vllm_config, self._kv_cache_config, self._caches, self._settings)
        self._rank = rank
        log.info("rank_bound", num_layers=rank.kv.num_layers, store_bytes=rank.arena.num_bytes, pic=self._settings.pic)

    @property
    def arena_path(self) -> str:
        """By which another process of the same user can map this rank's part of the store."""
        return self._bound.arena.path

    @property
    def page_bytes(self) -> int:
        return self._bound.arena.shape.num_bytes

    @torch.inference_mode()
    def save_blocks(self, orders: StepOrders) -> None:
        """Before anything of this step is written."""
        for save in orders.block_saves:
            block_tokens = self._bound.kv.shape.block_tokens
            self._save((save.block_id,), 0, block_tokens, save.pages)
            self._saved.add(save.save_id)

    @torch.inference_mode()
    def load(self, orders: StepOrders) -> None:
        """Before vLLM's own forward pass, or behind it in a step where no request waits for a load."""
        for request_id in orders.given_up:
            # One still in progress when its step is over is one that vLLM waits for.
            if self._loads.pop(request_id, None) is not None:
                self._received.add(request_id)
        for load in orders.loads:
            self._loads[load.request_id] = self._begin(load)
        for chunk in orders.chunks:
            self._compute(chunk)

    @torch.inference_mode()
    def save_segments(self, orders: StepOrders) -> None:
        """Behind vLLM's own forward pass."""
        for save in orders.segment_saves:
            self._save(save.block_ids, save.start, save.end, save.pages)
            self._saved.add(save.save_id)

    def take_received(self) -> set[str]:
        """Requests outside the batch whose load is complete, or given up, since the last call."""
        received, self._received = self._received, set()
        return received

    def take_report(self) -> StepReport | None:
        """What was done since the last call; None if nothing."""
        if not self._saved:
            return None
        report, self._saved = StepReport(frozenset(self._saved)), set()
        return report

    def shutdown(self) -> None:
        if self._rank is not None:
            self._rank.arena.close()
            self._rank = None

    @property
    def _bound(self) -> BoundRank:
        if self._rank is None:
            raise StartError("the connector has no model runner: start vLLM with the connector's worker class")
        return self._rank

    @property
    def _approximation(self) -> Approximation:
        approximation = self._bound.approximation
        if approximation is None:
            raise StartError("segments cannot be loaded: the connector was started for prefix blocks alone")
        return approximation

    def _begin(self, order: LoadOrder) -> LoadInProgress:
        kv, arena = self._bound.kv, self._bound.arena
        blocks = placed_blocks(order, arena, kv.shape.block_tokens)
        segments = placed_segments(order, arena)
        write_blocks(order, blocks, arena, kv)
        positions = positions_of(order.recompute)
        if len(segments) > 0:
            write_segments(order, segments, arena, kv, self._approximation.rotation)
        if order.selection is not None:
            selected = select_positions(
                order,
                order.selection.num_tokens,
                segments=segments,
                blocks=blocks,
                kv=kv,
                forward=self._approximation.forward,
            )
            positions = torch.cat([positions, selected]).sort().values
        return LoadInProgress(order, positions)

    def _compute(self, chunk: ChunkOrder) -> None:
        load = self._loads[chunk.request_id]
        positions = load.positions[chunk.first : chunk.first + chunk.num_tokens]
        if len(positions) > 0:
            self._approximation.forward.run(load.order.token_ids, load.order.block_ids, positions)
        if chunk.last:
            del self._loads[chunk.request_id]
            if chunk.is_async:
                self._received.add(chunk.request_id)

    def _save(self, block_ids: tuple[int, ...], start: int, end: int, pages: tuple[Page, ...]) -> None:
        kv, arena = self._bound.kv, self._bound.arena
        rows = arena.rows_of(pages, end - start)
        for layer in range(kv.num_layers):
            keys, values = kv.read(layer, block_ids, start, end)
            arena.write(layer, rows, keys, values)
