"""How many layers the models of the prefill-time tables have, from their published configurations."""

from types import MappingProxyType
from typing import Final

NUM_LAYERS: Final = MappingProxyType(
    {
        "Llama-3.1-8B": 32,
        "Mixtral-8x7B": 32,
        "Qwen3-8B": 36,
        "Qwen3-14B": 40,
        "Qwen3-32B": 64,
        "Qwen3-30B-A3B": 48,
        # Ten of these attend; the others are recurrent.
        "Qwen3.5-35B-A3B": 40,
    }
)
