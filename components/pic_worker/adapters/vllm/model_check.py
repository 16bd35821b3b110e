"""What PIC takes for granted of a model, tried out once at start.

Models that look alike differ in ways that no configuration tells: keys normalised after their rotation, layers without
it, scaled embeddings. So the model itself is run, in block 0, which vLLM gives to no request.
"""

from typing import Final

import torch

from nebula_protocol.fusion import PROBE_LAYERS
from pic_worker.adapters.vllm.paged_kv import PagedKv
from pic_worker.adapters.vllm.rotation import KeyRotation
from pic_worker.adapters.vllm.scattered_forward import ScatteredForward
from pic_worker.errors import StartError

_BLOCK: Final = 0
_TOKEN_ID: Final = 42
_NEAR_POSITION: Final = 3
_FAR_POSITION: Final = 1003
_NUM_TOKENS: Final = 8
# Models hold cosines in bf16, which are off by up to 0.4 %; an untrue assumption shows as tens of percent.
_TOLERANCE: Final = 0.05


def check_keys_rotate(forward: ScatteredForward, kv: PagedKv, rotation: KeyRotation, *, max_positions: int) -> None:
    """
    Raises:
        StartError: a token that sees only itself does not have the same KV at two positions, but for the rotation.
    """
    far = min(_FAR_POSITION, max_positions - 1)
    forward.run_alone(_TOKEN_ID, _NEAR_POSITION, _BLOCK)
    near_kv = _first_tokens(kv, kv.num_layers, 1)
    forward.run_alone(_TOKEN_ID, far, _BLOCK)
    turn = rotation.turn(torch.tensor([far - _NEAR_POSITION]))
    for layer, (keys, values) in enumerate(_first_tokens(kv, kv.num_layers, 1)):
        near_keys, near_values = near_kv[layer]
        if not (_are_close(turn.apply(near_keys), keys) and _are_close(near_values, values)):
            raise StartError(f"PIC cannot move this model's KV: layer {layer} does more than rotate keys by position")


def check_first_layers(forward: ScatteredForward, kv: PagedKv) -> None:
    """
    Raises:
        StartError: the model's first layers, run by themselves, do not give the KV that they give in the whole model.
    """
    refusal = StartError(
        "CacheBlend cannot run this model's first layers alone: choose another fusion, such as legolink"
    )
    if not forward.can_stop_early() or kv.num_layers < PROBE_LAYERS:
        raise refusal
    tokens, positions = range(_TOKEN_ID, _TOKEN_ID + _NUM_TOKENS), torch.arange(_NUM_TOKENS)
    forward.run(tokens, (_BLOCK,), positions)
    whole = _first_tokens(kv, PROBE_LAYERS, _NUM_TOKENS)
    forward.run(tokens[::-1], (_BLOCK,), positions)
    forward.run(tokens, (_BLOCK,), positions, num_layers=PROBE_LAYERS)
    alone = _first_tokens(kv, PROBE_LAYERS, _NUM_TOKENS)
    for (keys, values), (keys_alone, values_alone) in zip(whole, alone, strict=True):
        if not (_are_close(keys_alone, keys) and _are_close(values_alone, values)):
            raise refusal


def _first_tokens(kv: PagedKv, num_layers: int, num_tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [kv.read(layer, (_BLOCK,), 0, num_tokens) for layer in range(num_layers)]


def _are_close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found.float() - expected.float()).norm() <= _TOLERANCE * expected.float().norm())
