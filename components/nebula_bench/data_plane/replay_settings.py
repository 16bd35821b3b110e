"""How one trace is replayed live under several ways to know who has what."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

_MODEL_CONFIG = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ReplayScene(BaseModel):
    """How hard it is to know who has what. The same for those that are compared."""

    model_config = _MODEL_CONFIG

    store_capacity_tokens: int = Field(ge=0)
    """Of each prefill worker's store: what is small is soon evicted."""
    event_delay_s: float = Field(ge=0, le=60)
    """How much later than they happen workers publish events, in simulated seconds."""


class LiveReplaySettings(BaseModel):
    """In each scene the other view errs by a percent of the prompt tokens or more, as found in virtual time."""

    model_config = _MODEL_CONFIG

    trace: Path | None = None
    """Workload trace."""
    config: Path = Path("configs/nebula-7p1d-sim.yaml")
    """Settings of `graphs:nebula`."""
    num_requests: int = Field(default=1_000, ge=20)
    """The first requests of the trace."""
    rate_per_s: float = Field(default=40.0, gt=0, le=1_000)
    """Mean arrivals a second, in the trace's time."""
    seed: int = Field(default=1, ge=0)
    """Of the arrival times."""
    max_tokens: int = Field(default=2, ge=2, le=1_000)
    """Output tokens of each request: at least two, so that every prompt passes to the decode worker."""
    time_scale: float = Field(default=4.0, gt=0, le=1_000)
    """Real seconds per simulated second, for arrivals and workers alike."""
    invalid: ReplayScene = ReplayScene(store_capacity_tokens=200_000, event_delay_s=0.02)
    """In which invalid hits are counted, against optimistic entries."""
    repeated: ReplayScene = ReplayScene(store_capacity_tokens=25_000, event_delay_s=0.1)
    """In which repeated computation is counted, against events only."""
