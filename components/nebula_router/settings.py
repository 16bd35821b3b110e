"""The router's settings. `dynamo serve` resolves them; the process reads one JSON file."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from nebula_protocol.cut_settings import CutSettings

Accounting = Literal["merged", "events", "predicted", "optimistic"]


class RouterSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    namespace: str = "nebula"
    """Dynamo namespace of the frontend and this router."""
    pool_namespace: str = "nebula_pool"
    """Dynamo namespace of the prefill workers; another one, so that the frontend does not route to them itself."""
    component: str = "router"
    """Dynamo component that this router serves as."""
    model_path: str = ""
    """Folder with the model's tokenizer, chat template and configuration."""
    model_name: str = "nebula-sim"
    """Name under which clients ask for the model."""
    ttl_s: float = Field(default=5.0, gt=0, le=600)
    """How long a speculative entry lives past its expected completion while no event confirms it."""
    accounting: Accounting = "merged"
    """What the router takes for held: `merged` joins what workers confirm with what the router has just caused. The
    others are for comparisons: `events` knows only what workers have published; `predicted` also takes what a dispatch
    will leave as there at once, for `ttl_s`; `optimistic` does that for good and heeds no event."""
    max_index_entries: int = Field(default=2_000_000, ge=1_000)
    """Bound on prefix blocks and segments in the index together; the longest unused go first."""
    max_workers: int = Field(default=256, ge=1, le=4096)
    """Bound on schedulers (worker, dp_rank) in the index."""
    cut: CutSettings = CutSettings()
    """How prompts are cut into segments."""
    pic: bool = True
    """Position-independent reuse, unless a request's annotation turns it off."""
    parallel_prefill: bool = True
    """Let helpers compute missing segments when the estimate says that it is faster."""
    remote_reuse: bool = True
    """Fetch segments from other workers when the estimate says that it is faster."""
    join: bool = True
    """With `remote_reuse`: wait for segments that other workers are computing when the estimate says so."""
    max_helpers: int = Field(default=6, ge=0, le=64)
    """Most helpers for one request."""
    split: Literal["auto", "fixed"] = "auto"
    """Who divides the stores between prefix blocks and segments: the router, by what either would save, or the workers'
    own `prefix_ratio`."""
    prefix_ratio: float = Field(default=0.2, ge=0, le=1)
    """With `split: auto`, the share of each store for prefix blocks to begin with."""
    window_requests: int = Field(default=32, ge=1, le=4096)
    """With `split: auto`, after how many requests the split is looked at again."""
    wait_slack_ratio: float = Field(default=1.0, ge=0)
    """A target waits for remote segments this much longer than estimated, as a share of the estimate, plus 50 ms."""
    worker_wait_s: float = Field(default=30.0, ge=0, le=3600)
    """How long a request waits for a prefill worker while there is none; then it is answered with 503."""
    drain_s: float = Field(default=30.0, ge=0, le=3600)
    """After SIGTERM, how long the router finishes what it serves while new requests go elsewhere."""
    publish_decisions: bool = True
    """Publish every decision, and every look at the split, on NATS for `nebula events` and `nebula explain`."""
    metrics_port: int = Field(default=0, ge=0, le=32767)
    """Port of the router's own /metrics and /health; 0 picks a free one. Dynamo reads it as a signed 16-bit number."""
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    """Lowest level that is logged."""
