"""The first prefills of an engine: they make it fast for those that follow, and tell what a step costs."""

from typing import Final

import numpy as np
from vllm import SamplingParams
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind

from nebula_protocol.cost import CostFit
from pic_worker.adapters.vllm.engine import VllmEngine
from pic_worker.adapters.vllm.priorities import PROMPT_PRIORITY
from pic_worker.core.cost_fit import fit_step_cost
from pic_worker.errors import StartError

_SALT: Final = "warm-up"
_SIZES_TOKENS: Final = (16, 128, 512)


async def measure_step_cost(engine: VllmEngine, *, max_tokens: int, vocabulary: int) -> CostFit:
    """A coarse fit through a few prefills; the router corrects itself from receipts.

    Args:
        max_tokens: Longest prompt that fits one step.

    Raises:
        StartError: the engine answers no prompt.
    """
    sizes = [min(size, max_tokens) for size in _SIZES_TOKENS]
    # The first is slower: threads start, caches and kernels are made.
    await _prefill_s(engine, sizes[1], vocabulary, number=0)
    times_s = [await _prefill_s(engine, size, vocabulary, number) for number, size in enumerate(sizes, start=1)]
    return fit_step_cost(sizes, times_s)


async def run_shortest(engine: VllmEngine) -> None:
    """One token, of which no block is kept: vLLM tells what happened outside of its steps with the next one.

    Raises:
        StartError: the engine does not answer.
    """
    await _prefill_s(engine, 1, 1, number=len(_SIZES_TOKENS) + 1)


async def _prefill_s(engine: VllmEngine, num_tokens: int, vocabulary: int, number: int) -> float:
    tokens = np.random.default_rng(number).integers(0, vocabulary, num_tokens).tolist()
    params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
    last: RequestOutput | None = None
    async for output in engine.generate(
        f"warm-up-{number}", tokens, params, cache_salt=f"{_SALT}-{number}", priority=PROMPT_PRIORITY
    ):
        last = output
    if last is None or last.metrics is None:
        raise StartError("vLLM does not answer its first prompt")
    return last.metrics.first_token_ts - last.metrics.scheduled_ts
