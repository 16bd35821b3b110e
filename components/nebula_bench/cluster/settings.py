"""The cluster of one cell: how many workers, how they and the network behave, and what is sent to them."""

from pydantic import BaseModel, ConfigDict, Field

from nebula_protocol.cut_settings import CutSettings
from nebula_router.settings import RouterSettings
from pic_worker.settings import WorkerSettings

_MODEL_CONFIG = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

# The trace's spans name every segment, so no other mark is needed; without a tokenizer no other could be found.
_SPANS_ONLY = CutSettings(message_starts=())


class Crash(BaseModel):
    """A prefill worker that dies and comes back empty."""

    model_config = _MODEL_CONFIG

    worker: int = Field(ge=0)
    """Which one, counted from 0."""
    at_s: float = Field(ge=0)
    """When it dies, from the start of the run."""
    down_s: float = Field(default=10.0, gt=0)
    """How long it stays away."""


class NetworkSettings(BaseModel):
    """Messages between processes. The links on which KV travels are the workers' own setting."""

    model_config = _MODEL_CONFIG

    message_s: float = Field(default=0.0005, ge=0, le=1)
    """One way of a request, reply or question between two processes."""
    event_delay_s: float = Field(default=0.02, ge=0, le=60)
    """From when a worker sends an event, which is when it happens unless `worker.sim.event_delay_s` says otherwise,
    until the router has taken it in."""
    event_loss_ratio: float = Field(default=0.0, ge=0, le=1)
    """Share of event messages that never arrive."""


class NoiseSettings(BaseModel):
    """How far the truth is from the calibrated table: log-normal factors with these standard deviations."""

    model_config = _MODEL_CONFIG

    step_ratio: float = Field(default=0.03, ge=0, le=1)
    """From step to step."""
    worker_ratio: float = Field(default=0.02, ge=0, le=1)
    """From worker to worker, for the whole run."""


class ClusterSettings(BaseModel):
    model_config = _MODEL_CONFIG

    prefill_workers: int = Field(default=7, ge=1, le=512)
    """Workers that prefill."""
    decode_workers: int = Field(default=1, ge=1, le=512)
    """Workers that decode; without a second output token they have nothing to do."""
    worker: WorkerSettings = WorkerSettings(cut=_SPANS_ONLY)
    """Every worker's own settings, as in a real deployment."""
    router: RouterSettings = RouterSettings(cut=_SPANS_ONLY)
    """The router's own settings, as in a real deployment."""
    network: NetworkSettings = NetworkSettings()
    """Messages and events."""
    noise: NoiseSettings = NoiseSettings()
    """What the router cannot know beforehand."""
    crashes: tuple[Crash, ...] = ()
    """Workers that die on the way."""


class LoadSettings(BaseModel):
    """What is sent to the cluster."""

    model_config = _MODEL_CONFIG

    rate_per_s: float = Field(gt=0, le=100_000)
    """Mean arrivals a second (Poisson), in the trace's order."""
    seed: int = Field(default=1, ge=0)
    """Of the arrival times and of the noise."""
    warmup_requests: int = Field(default=0, ge=0)
    """The first requests, left out of every statistic."""
    output_tokens: int = Field(default=1, ge=1)
    """Of each request; from the second on a decode worker makes them."""
    closed_loop: bool = False
    """A request waits in its client until the one before it in the same session is answered; its TTFT begins then."""
