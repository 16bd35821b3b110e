"""What a vLLM worker tells about itself."""

from nebula_protocol.card import WorkerCard
from nebula_protocol.cost import NO_LINK, CostFit, LinkFit
from nebula_protocol.data_plane import DataPlaneKind
from nebula_protocol.ids import Role, WorkerEpoch, WorkerId
from pic_worker.adapters.vllm.model_facts import ModelFacts
from pic_worker.settings import WorkerSettings

_HOST_COPY_BYTES_PER_S = 4e9
"""Host memory to host memory, read and written with the keys rotated between, on one core."""
_DEVICE_COPY_BYTES_PER_S = 20e9
"""Host memory to a GPU over PCIe 4."""
_TCP_LINK = LinkFit(floor_s=0.01, bytes_per_s=1e9)
"""A question, an answer and a connection, then pages through sockets with a digest on both sides, on one core each. A
router corrects what it expects from what receipts tell."""


def make_card(
    settings: WorkerSettings,
    facts: ModelFacts,
    step_cost: CostFit,
    worker_id: WorkerId,
    epoch: WorkerEpoch,
    *,
    has_gpu: bool,
) -> WorkerCard:
    bytes_per_s = _DEVICE_COPY_BYTES_PER_S if has_gpu else _HOST_COPY_BYTES_PER_S
    return WorkerCard(
        worker_id=worker_id,
        epoch=epoch,
        role=Role(settings.role),
        domain=facts.domain,
        engine=settings.engine,
        pic=settings.pic,
        context_tokens=settings.context_tokens,
        device_capacity_tokens=facts.device_capacity_tokens,
        # Without PIC there is no store below the device tier.
        store_capacity_tokens=settings.store_capacity_tokens if settings.pic else 0,
        kv_bytes_per_token=facts.kv_bytes_per_token,
        max_step_tokens=settings.max_step_tokens,
        num_layers=facts.num_layers,
        fusion=settings.fusion,
        step_cost=step_cost,
        peer_link=_link(settings),
        load_s_per_token=facts.kv_bytes_per_token / bytes_per_s,
    )


def _link(settings: WorkerSettings) -> LinkFit:
    match settings.data_plane.kind if settings.pic else None:
        case DataPlaneKind.TCP:
            return _TCP_LINK
        case DataPlaneKind.NIXL:
            return LinkFit(floor_s=settings.link.floor_s, bytes_per_s=settings.link.bytes_per_s)
        case None:
            return NO_LINK
