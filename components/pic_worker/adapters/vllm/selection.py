"""CacheBlend's probe: which of the injected tokens are computed again."""

import torch

from nebula_protocol.fusion import PROBE_LAYERS
from pic_worker.adapters.vllm.deviation import key_deviation, largest_deviations
from pic_worker.adapters.vllm.injection import Placement
from pic_worker.adapters.vllm.orders import LoadOrder
from pic_worker.adapters.vllm.paged_kv import PagedKv
from pic_worker.adapters.vllm.scattered_forward import ScatteredForward
from pic_worker.adapters.vllm.token_runs import positions_of


def select_positions(
    order: LoadOrder,
    count: int,
    *,
    segments: Placement,
    blocks: Placement,
    kv: PagedKv,
    forward: ScatteredForward,
) -> torch.Tensor:
    """Runs the first layers over all tokens to load, but those of `blocks`, which are exact; int64, ascending.

    In these layers the fresh KV stays: it is what the whole context makes of the tokens, and no later pass changes it.

    Args:
        segments: injected already.
    """
    candidates = segments.positions[~torch.isin(segments.positions, positions_of(order.recompute))]
    if count == 0 or len(candidates) == 0:
        return candidates[:0]
    reused = _probed_keys(order, kv)[candidates - order.start]
    probed = torch.arange(order.start, order.end)
    probed = probed[~torch.isin(probed, blocks.positions)]
    forward.run(order.token_ids, order.block_ids, probed, num_layers=PROBE_LAYERS)
    fresh = _probed_keys(order, kv)[candidates - order.start]
    return candidates[largest_deviations(key_deviation(fresh, reused), count)]


def _probed_keys(order: LoadOrder, kv: PagedKv) -> torch.Tensor:
    keys, _ = kv.read(PROBE_LAYERS - 1, order.block_ids, order.start, order.end)
    return keys
