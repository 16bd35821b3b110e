"""Takes the logits of each request's first answer token out of an engine in this process."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality

from nebula_bench.quality.engine import Logits

CAPTURE_KEY = "nebula_first_logits"
"""In a request's `extra_args`: the name to hand its logits out under."""


@dataclass(frozen=True, slots=True)
class _Watched:
    name: str
    output_token_ids: list[int]
    """vLLM's own list, which grows with the answer."""


def capture_first_logits(take: Callable[[str, Logits], None]) -> type[LogitsProcessor]:
    """A logits processor that changes nothing.

    It is asked in steps of chunked prefill too, whose logits are no answer: `take` is called again for the same name
    until the answer has a token, and the last call counts.
    """

    class FirstLogits(LogitsProcessor):
        def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
            self._rows: dict[int, _Watched] = {}

        def is_argmax_invariant(self) -> bool:
            """False, though it is: those that are get skipped for greedy requests."""
            return False

        def update_state(self, batch_update: BatchUpdate | None) -> None:
            if batch_update is None:
                return
            for row in batch_update.removed:
                self._rows.pop(row, None)
            for row, params, _, output_token_ids in batch_update.added:
                self._rows.pop(row, None)
                name = _name(params)
                if name is not None:
                    self._rows[row] = _Watched(name, output_token_ids)
            for source, target, direction in batch_update.moved:
                moved, replaced = self._rows.pop(source, None), self._rows.pop(target, None)
                if moved is not None:
                    self._rows[target] = moved
                if replaced is not None and direction is MoveDirectionality.SWAP:
                    self._rows[source] = replaced

        def apply(self, logits: torch.Tensor) -> torch.Tensor:
            for row, watched in self._rows.items():
                if not watched.output_token_ids:
                    take(watched.name, logits[row].detach().float().cpu().numpy().copy())
            return logits

    return FirstLogits


def _name(params: SamplingParams) -> str | None:
    name = (params.extra_args or {}).get(CAPTURE_KEY)
    return name if isinstance(name, str) else None
