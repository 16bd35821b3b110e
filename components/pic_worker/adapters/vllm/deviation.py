"""CacheBlend's choice: the tokens whose keys differ most from what the context makes of them."""

import torch
from vllm.distributed.parallel_state import get_tp_group


def key_deviation(fresh: torch.Tensor, reused: torch.Tensor) -> torch.Tensor:
    """Of keys [tokens, heads, dimension]: the squared difference of each token over all ranks' heads, fp32 [tokens]."""
    squares = (fresh.float() - reused.float()).square().sum(dim=(1, 2))
    return get_tp_group().all_reduce(squares)


def largest_deviations(deviation: torch.Tensor, count: int) -> torch.Tensor:
    """Ascending indices of the `count` largest; of equal ones the first, so that all ranks choose alike."""
    order = deviation.cpu().sort(descending=True, stable=True).indices
    return order[:count].sort().values
