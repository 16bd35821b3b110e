"""What the engine core must know about its worker."""

from dataclasses import dataclass

from nebula_protocol.cost import LinkFit
from nebula_protocol.fusion import Fusion
from nebula_protocol.ids import WorkerEpoch, WorkerWithDpRank


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    worker: WorkerWithDpRank
    epoch: WorkerEpoch
    block_size_tokens: int
    device_capacity_tokens: int
    """Rounded down to whole blocks."""
    store_capacity_tokens: int
    prefix_ratio: float
    max_step_tokens: int
    max_running: int
    kv_bytes_per_token: int
    num_layers: int
    """Of the model."""
    fusion: Fusion
    """Unless a request asks for something else."""
    peer_link: LinkFit
    pic: bool = True
    prompt_hold_s: float = 60.0
    """How long a prefilled prompt's KV waits for its decode worker."""
    lease_s: float = 10.0
    """How long a segment that was promised to a peer stays pinned if the peer's transfer is never closed."""
    join_grace_s: float = 0.25
    """How long a peer's join may wait for a segment of which nothing is known yet: its request may be on its way."""
    helper_patience_s: float = 0.25
    """After this long without a token of helper work, helpers are given `helper_share_ratio` of a step."""
    helper_share_ratio: float = 0.25
    veto_ratio: float = 2.0
    """On an idle engine, a fetch that takes this many times as long as computing the same tokens is not made.

    Infinity makes every fetch.
    """

    stream_pieces: int = 1
    """In how many pieces, layer by layer, KV is sent to peers and loaded while steps compute; 1: only as a whole, and
    before."""

    announces_early: bool = False
    """Events of the device tier leave when a step is scheduled, as Dynamo's mock engine and older vLLM send them.

    Otherwise when the step ends.
    """

    @property
    def device_capacity_blocks(self) -> int:
        return self.device_capacity_tokens // self.block_size_tokens
