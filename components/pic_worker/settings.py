"""A worker's settings. `dynamo serve` resolves them; the process reads one JSON file."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, model_validator

from nebula_protocol.cut_settings import CutSettings
from nebula_protocol.errors import FusionError
from nebula_protocol.fusion import Fusion, legolink, parse_fusion
from pic_worker.data_plane_settings import DataPlaneSettings
from pic_worker.vllm_settings import VllmSettings

_MODEL_CONFIG = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _read_fusion(value: object) -> Fusion:
    if isinstance(value, Fusion):
        return value
    try:
        return parse_fusion(str(value))
    except FusionError as error:
        raise ValueError(str(error)) from error


FusionSetting = Annotated[
    Fusion, PlainValidator(_read_fusion, json_schema_input_type=str), PlainSerializer(str, return_type=str)
]
"""In files and on the command line a fusion is the text that requests use too."""


class LinkSettings(BaseModel):
    model_config = _MODEL_CONFIG

    floor_s: float = Field(default=0.003, ge=0, le=10)
    """Fixed time of a transfer."""
    bytes_per_s: float = Field(default=22e9, gt=0)
    """Bandwidth of one worker's link, shared by its concurrent transfers."""


class SimSettings(BaseModel):
    """The engine that spends calibrated time instead of computing."""

    model_config = _MODEL_CONFIG

    model: str = "Qwen3-14B"
    """Model of the prefill-time table."""
    dtype: str = "bf16"
    """Weights' type of the table: bf16 or fp8_block."""
    system: str = "h100_sxm"
    """GPU of the table: h100_sxm, h200_sxm or a100_sxm."""
    time_factor: float = Field(default=1.15, gt=0, le=10)
    """Multiplies the table's kernel times."""
    step_overhead_s: float = Field(default=0.005, ge=0, le=1)
    """Host and scheduler time added to each step."""
    time_scale: float = Field(default=1.0, gt=0, le=1000)
    """Real seconds per simulated second: 10 runs ten times slower."""
    decode_token_s: float = Field(default=0.012, gt=0, le=10)
    """Time between two decoded tokens."""
    host_load_bytes_per_s: float = Field(default=55e9, gt=0)
    """Store to device tier (PCIe)."""
    rotation_bytes_per_s: float = Field(default=800e9, gt=0)
    """Speed of rotating keys of reused segments."""
    event_delay_s: float = Field(default=0.0, ge=0, le=60)
    """How much later than they happen events are published: a slow event plane, for comparisons."""
    answer: str = Field(
        default="This is a simulated answer: time was spent as a GPU would, but no model ran. ", min_length=1
    )
    """Text that every decode repeats up to the requested length."""


class WorkerSettings(BaseModel):
    model_config = _MODEL_CONFIG

    role: Literal["prefill", "decode"] = "prefill"
    """Which half of a request this worker serves."""
    engine: Literal["sim", "vllm"] = "sim"
    """What computes: vLLM, or calibrated times."""
    namespace: str = "nebula_pool"
    """Dynamo namespace to serve in."""
    pool_namespace: str = "nebula_pool"
    """Namespace of the prefill workers, in which workers find each other."""
    component: str = "prefill"
    """Dynamo component to serve as."""
    model_path: str = ""
    """Folder with the model's tokenizer, chat template and configuration."""
    model_name: str = "nebula-sim"
    """Name under which clients ask for the model."""
    tool_call_parser: str | None = None
    """Dynamo's parser for the tool calls of the model's answers, where this worker registers the model: hermes, say."""
    reasoning_parser: str | None = None
    """Dynamo's parser for the reasoning in the model's answers, where this worker registers the model: qwen3, say."""
    pic: bool = True
    """Reuse and keep position-independent segments."""
    block_size_tokens: int = Field(default=16, ge=1, le=1024)
    """Tokens per KV block."""
    context_tokens: int = Field(default=32768, ge=16)
    """Longest prompt and answer together."""
    device_capacity_tokens: int = Field(default=100_000, ge=1024)
    """KV room of the engine's own paged cache."""
    store_capacity_tokens: int = Field(default=200_000, ge=0)
    """KV room of the store below it, shared by prefix blocks and segments."""
    prefix_ratio: float = Field(default=0.3, ge=0, le=1)
    """Share of the store for prefix blocks until the router says otherwise."""
    max_step_tokens: int = Field(default=8192, ge=64)
    """Token budget of one engine step."""
    max_running: int = Field(default=256, ge=1)
    """Most requests in one engine step."""
    fusion: FusionSetting = legolink()
    """What is computed again of reused segments: legolink:16 (leading tokens of each), cacheblend:0.15 (share), none or
    full. A request's annotation `nebula.fusion` goes before it."""
    stream_pieces: int = Field(default=16, ge=1, le=256)
    """In how many pieces, layer by layer, KV is sent to other workers and loaded while steps compute; 1: only as a
    whole, and before."""
    link: LinkSettings = LinkSettings()
    """Link to other workers. The `vllm` engine tells it of NIXL; of TCP it knows better."""
    data_plane: DataPlaneSettings = DataPlaneSettings()
    """How segments are copied between workers; only for the `vllm` engine."""
    sim: SimSettings = SimSettings()
    """Only for the `sim` engine."""
    vllm: VllmSettings = VllmSettings()
    """Only for the `vllm` engine."""
    cut: CutSettings = CutSettings()
    """How this worker cuts prompts itself."""
    prompt_hold_s: float = Field(default=60.0, gt=0, le=3600)
    """How long a prefilled prompt's KV waits for its decode worker."""
    drain_s: float = Field(default=25.0, ge=0, le=3600)
    """After SIGTERM, how long the worker finishes what it serves while new requests go elsewhere."""
    metrics_port: int = Field(default=0, ge=0, le=32767)
    """Port of the worker's /metrics and /health; 0 picks a free one. Dynamo reads it as a signed 16-bit number."""
    log_level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    """Lowest level that is logged."""

    @model_validator(mode="after")
    def _check_pages(self) -> Self:
        if self.engine == "vllm" and self.block_size_tokens % self.vllm.page_tokens:
            raise ValueError(
                f"vllm.page_tokens ({self.vllm.page_tokens}) must divide block_size_tokens ({self.block_size_tokens})"
            )
        return self
