"""The models that fit one GPU with room for KV, and the table that is used for each."""

from dataclasses import dataclass

from nebula_bench.errors import CellError


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    dtype: str
    """Of the weights."""
    system: str
    """GPU of the prefill-time table."""


MODELS = (
    Model("Llama-3.1-8B", "bf16", "h100_sxm"),
    Model("Qwen3-8B", "bf16", "h100_sxm"),
    Model("Qwen3-14B", "bf16", "h100_sxm"),
    Model("Qwen3-32B", "fp8_block", "h100_sxm"),
    Model("Qwen3-30B-A3B", "bf16", "h200_sxm"),
    # Its recurrent layers, for which position-independent reuse is undefined, are ignored: an assumption, not a result.
    Model("Qwen3.5-35B-A3B", "bf16", "h200_sxm"),
)


def find_model(name: str) -> Model:
    """
    Raises:
        CellError: no such model.
    """
    for model in MODELS:
        if model.name == name:
            return model
    raise CellError(f"unknown model {name!r}; known are {', '.join(model.name for model in MODELS)}")
