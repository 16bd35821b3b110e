"""What `compare_divisions` compares."""

from pydantic import BaseModel, ConfigDict, Field


class SplitSettings(BaseModel):
    """One cache in the place of a cluster's: capacities are those of all workers together."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    num_workers: int = Field(default=7, ge=1)
    """By which the following are multiplied."""
    device_tokens: int = Field(default=16_000, ge=1_024)
    """Device tier of each worker."""
    store_tokens: tuple[int, ...] = (12_500, 25_000, 50_000, 100_000, 200_000, 400_000)
    """Capacities of each worker's store."""
    ratios: tuple[float, ...] = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
    """Static splits to try."""
    start_ratio: float = Field(default=0.2, ge=0, le=1)
    """Where the controller begins."""
    window_requests: int = Field(default=32, ge=1)
    """The controller's window."""
