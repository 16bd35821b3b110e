"""A simulated worker's identity and its engine's configuration, from its settings."""

from nebula_protocol.card import WorkerCard
from nebula_protocol.domain import Domain
from nebula_protocol.ids import Role, WorkerEpoch, WorkerId, WorkerWithDpRank
from pic_worker.adapters.sim.costs import SimCosts
from pic_worker.core.engine_config import EngineConfig
from pic_worker.settings import WorkerSettings


def make_card(settings: WorkerSettings, costs: SimCosts, worker_id: WorkerId, epoch: WorkerEpoch) -> WorkerCard:
    """What the worker tells about itself."""
    return WorkerCard(
        worker_id=worker_id,
        epoch=epoch,
        role=Role(settings.role),
        domain=Domain(
            model=f"{settings.model_name}/{settings.sim.model}",
            dtype=settings.sim.dtype,
            block_size_tokens=settings.block_size_tokens,
        ),
        engine=settings.engine,
        pic=settings.pic,
        context_tokens=settings.context_tokens,
        device_capacity_tokens=settings.device_capacity_tokens,
        store_capacity_tokens=settings.store_capacity_tokens,
        kv_bytes_per_token=costs.kv_bytes_per_token,
        max_step_tokens=settings.max_step_tokens,
        stream_pieces=settings.stream_pieces,
        num_layers=costs.num_layers,
        fusion=settings.fusion,
        step_cost=costs.fit,
        peer_link=costs.link,
        load_s_per_token=costs.load.segment_s_per_token / settings.stream_pieces,
    )


def make_engine_config(settings: WorkerSettings, costs: SimCosts, card: WorkerCard) -> EngineConfig:
    """What the engine core must know of it."""
    return EngineConfig(
        worker=WorkerWithDpRank(card.worker_id),
        epoch=card.epoch,
        block_size_tokens=settings.block_size_tokens,
        device_capacity_tokens=settings.device_capacity_tokens,
        store_capacity_tokens=settings.store_capacity_tokens,
        prefix_ratio=settings.prefix_ratio,
        max_step_tokens=settings.max_step_tokens,
        max_running=settings.max_running,
        kv_bytes_per_token=costs.kv_bytes_per_token,
        num_layers=costs.num_layers,
        fusion=settings.fusion,
        peer_link=costs.link,
        stream_pieces=settings.stream_pieces,
        pic=settings.pic,
        prompt_hold_s=settings.prompt_hold_s,
    )
