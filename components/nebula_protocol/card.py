"""What a worker tells about itself when asked: identity, domain, capacities and costs."""

import msgspec

from nebula_protocol.cost import CostFit, LinkFit
from nebula_protocol.domain import Domain
from nebula_protocol.fusion import Fusion
from nebula_protocol.ids import Role, WorkerEpoch, WorkerId


class WorkerCard(msgspec.Struct, frozen=True, kw_only=True):
    """Sent with every full state; all a router needs to plan on the worker."""

    version: int = 1
    worker_id: WorkerId
    epoch: WorkerEpoch
    role: Role
    domain: Domain
    dp_size: int = 1
    engine: str
    pic: bool
    context_tokens: int
    device_capacity_tokens: int
    store_capacity_tokens: int
    kv_bytes_per_token: int
    max_step_tokens: int
    num_layers: int
    """Of the model; a fusion's probe runs through the first of them."""
    fusion: Fusion
    """What it computes again of reused segments, unless a request asks for something else."""
    step_cost: CostFit
    peer_link: LinkFit
    stream_pieces: int = 1
    """In how many pieces, layer by layer, copied KV is sent and used; 1: only as a whole."""
    load_s_per_token: float
    """Time that it adds to a step to bring one token's KV from the store into the device tier (copy and rotation); what
    computing hides apart."""
