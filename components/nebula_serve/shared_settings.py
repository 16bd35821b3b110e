"""The `Common` section: what several services of one deployment must agree on."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from nebula_protocol.cut_settings import CutSettings

SHARED_SECTION = "Common"


class CommonSettings(BaseModel):
    """A value here reaches every service that has such a key and does not set it itself; null leaves them alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    engine: Literal["auto", "sim", "vllm"] = "auto"
    """What the workers compute with. auto: vllm where it is installed and runs on this machine, else sim."""
    model_path: str | None = None
    """Folder of a Hugging Face model. Without one: SmolLM2-135M-Instruct, and for `sim` a tokenizer of its own."""
    models_dir: str = "models"
    """Where those are made when they are missing; relative to the working directory."""
    model_name: str | None = None
    """Name under which clients ask for the model. Without one: the name of the model's folder."""
    namespace: str = "nebula"
    """Dynamo namespace of the frontend and of what answers it."""
    pool_namespace: str | None = None
    """Dynamo namespace of the workers. Another than the frontend's hides them from Dynamo's own routing."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    log_format: Literal["console", "json"] = "console"
    """How log lines look: for people, or one JSON object a line with the process in it."""
    pic: bool | None = None
    """Reuse position-independent segments."""
    block_size_tokens: int | None = Field(default=None, ge=1, le=1024)
    """Tokens per KV block."""
    context_tokens: int | None = Field(default=None, ge=16)
    """Longest prompt and answer together. null with `vllm`: what the model was made for, at most 32,768."""
    cut: CutSettings = CutSettings()
    """How prompts are cut into segments; the router and the workers must agree."""
    sim_model: str | None = None
    """For the `sim` engine: model of the prefill-time table."""
    sim_dtype: str | None = None
    """For the `sim` engine: weights' type of the table."""
    sim_system: str | None = None
    """For the `sim` engine: GPU of the table."""
    time_scale: float | None = Field(default=None, gt=0)
    """For the `sim` engine: real seconds per simulated second."""
