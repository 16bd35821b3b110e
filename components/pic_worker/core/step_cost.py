"""How long steps and loads take."""

from dataclasses import dataclass

from pic_worker.core.prefill_table import PrefillTable


@dataclass(frozen=True, slots=True)
class StepCost:
    table: PrefillTable
    time_factor: float = 1.0
    step_overhead_s: float = 0.0

    def step_s(self, num_tokens: int, attention_pairs: float) -> float:
        """Duration of a step of all its requests' tokens and pairs; pairs = sum of n * (context + n / 2)."""
        context_tokens = attention_pairs / num_tokens - num_tokens / 2
        return self.table.step_s(num_tokens, context_tokens) * self.time_factor + self.step_overhead_s


@dataclass(frozen=True, slots=True)
class LoadCost:
    """Bringing KV from the store into the device tier. Reused segments also have their keys rotated."""

    kv_bytes_per_token: int
    host_load_bytes_per_s: float
    rotation_bytes_per_s: float

    @property
    def block_s_per_token(self) -> float:
        """A prefix block: the copy."""
        return self.kv_bytes_per_token / self.host_load_bytes_per_s

    @property
    def segment_s_per_token(self) -> float:
        """A segment: the copy, and the rotation of its keys, which are half of the bytes."""
        return self.block_s_per_token + self.kv_bytes_per_token / 2 / self.rotation_bytes_per_s
