"""How parallel prefill is measured."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class ParallelSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    trace: Path | None = None
    """Workload trace of the replay under full load."""
    config: Path = Path("configs/nebula-7p1d-sim.yaml")
    """Settings of `graphs:nebula`."""
    num_prompts: int = Field(default=7, ge=5, le=1_000)
    """Cold prompts of each size on the idle cluster; the reported number is the median."""
    idle_time_scale: float = Field(default=4.0, gt=0, le=1_000)
    """Real seconds per simulated second for these, so that the frontend's own milliseconds do not count."""
    num_requests: int = Field(default=600, ge=20)
    """The first requests of the trace."""
    rate_per_s: float = Field(default=109.0, gt=0, le=1_000)
    """Mean arrivals a second. At 109 the workers are 95 % busy without parallel prefill over the first 600 requests of
    ragpulse: `nebula bench cell --workload ragpulse --policy nebula_no_parallel --limit 600 --rate 109`."""
    seeds: tuple[int, ...] = Field(default=(1, 2, 3), min_length=1)
    """Of the arrival times, a replay with and one without for each; the reported number is the median."""
    loaded_time_scale: float = Field(default=8.0, gt=0, le=1_000)
    """Real seconds per simulated second for the replays."""
