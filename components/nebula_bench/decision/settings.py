"""What the decision benchmark measures, and how often."""

from pydantic import BaseModel, ConfigDict, Field


class DecisionSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    workers: tuple[int, ...] = (8, 64)
    """Numbers of workers, each a scene of its own."""
    prompt_tokens: tuple[int, ...] = (1_000, 4_000, 16_000, 32_000)
    """Lengths of the prompts."""
    num_entries: int = Field(default=100_000, ge=4_096)
    """Prefix blocks in each index, over all workers."""
    num_repetitions: int = Field(default=5, ge=1)
    """The reported number is the median of this many medians."""
    num_calls: int = Field(default=40, ge=1)
    """Calls of each kind in a repetition."""
