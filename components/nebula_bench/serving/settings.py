"""What the serving benchmark measures, and on which graphs."""

from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from nebula_bench.replay.settings import ReplaySettings


class Part(StrEnum):
    REPLAY = "replay"
    """A trace on both graphs, side by side."""
    KILL = "kill"
    """Prefill workers killed in a replay, and between their reply and decode's pull."""
    STAGE = "stage"
    """What the router costs as Dynamo's prefill stage, and which processes may be lost under load."""
    BAD_INPUT = "bad-input"
    """Requests that are wrong, and what the client is told."""


class ServingSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    trace: Path | None = None
    """Workload trace of the replays. Only wrong requests need none."""
    num_requests: int = Field(default=500, ge=20)
    """The first requests of the trace."""
    rate_per_s: float = Field(default=20.0, gt=0, le=1_000)
    """Mean arrivals a second, in the trace's time."""
    seed: int = Field(default=1, ge=0)
    """Of the arrival times."""
    max_tokens: int = Field(default=8, ge=2, le=1_000)
    """Output tokens of each request. At least two, so that every answer passes from prefill to decode."""
    time_scale: float = Field(default=1.0, gt=0, le=1_000)
    """Real seconds per simulated second, for arrivals and workers of both graphs alike."""
    nebula_config: Path = Path("configs/nebula-7p1d-sim.yaml")
    """Settings of `graphs:nebula`."""
    dynamo_kv_config: Path = Path("configs/dynamo_kv-7p1d-sim.yaml")
    """Settings of `graphs:dynamo_kv`."""
    num_handover_kills: int = Field(default=3, ge=1, le=100)
    """How many prefill workers are killed between their reply and decode's pull, one after another."""
    logs: Path | None = None
    """Folder for the logs of the graphs; without one they go with their working directories."""

    def replay_settings(self, url: str, model: str) -> ReplaySettings:
        return ReplaySettings(
            url=url,
            model=model,
            rate_per_s=self.rate_per_s,
            seed=self.seed,
            max_tokens=self.max_tokens,
            time_scale=self.time_scale,
        )
