"""Settings of the `vllm` engine alone; what it shares with `sim` stands in the worker's own settings."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, field_validator

RESERVED_ENGINE_ARGS: Mapping[str, str] = {
    "block_size": "block_size_tokens",
    "distributed_executor_backend": "",
    "dtype": "vllm.dtype",
    "enable_prefix_caching": "",
    "enforce_eager": "vllm.enforce_eager",
    "gpu_memory_utilization": "vllm.gpu_memory_utilization",
    "kv_cache_dtype": "",
    "kv_cache_memory_bytes": "vllm.kv_cache_bytes",
    "kv_events_config": "",
    "kv_transfer_config": "",
    "max_model_len": "context_tokens",
    "max_num_batched_tokens": "max_step_tokens",
    "max_num_seqs": "max_running",
    "model": "model_path",
    "num_gpu_blocks_override": "vllm.kv_cache_bytes",
    "pipeline_parallel_size": "",
    "prefix_caching_hash_algo": "",
    "seed": "vllm.seed",
    "served_model_name": "model_name",
    "skip_tokenizer_init": "",
    "speculative_config": "",
    "tensor_parallel_size": "vllm.tensor_parallel",
    "tokenizer": "model_path",
    "worker_cls": "",
}
"""Arguments of vLLM that the worker sets itself, with the setting that governs each; empty where none does."""

EngineArgName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]


class VllmSettings(BaseModel):
    """How vLLM computes. max_step_tokens and max_running of the worker are vLLM's max_num_batched_tokens and
    max_num_seqs; context_tokens is its max_model_len."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    tensor_parallel: int = Field(default=1, ge=1, le=64)
    """Ranks that share the model's heads, each a GPU or, without one, a process."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of weights and KV; auto: as the model says. Prefill and decode workers must agree."""
    enforce_eager: bool | None = None
    """Run the model without compiling it: quick to start. null: yes without a GPU, no with one."""
    kv_cache_bytes: int | None = Field(default=None, ge=1 << 20)
    """Room of each rank's paged cache. null: without a GPU as much as device_capacity_tokens need, with one what
    gpu_memory_utilization leaves."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Share of a GPU's memory for weights, work space and paged cache."""
    page_tokens: int = Field(default=16, ge=1, le=1024)
    """Tokens of one page of the store; divides block_size_tokens."""
    max_recomputed_tokens_per_step: int = Field(default=2048, ge=16)
    """Bound of what is computed again of reused segments in one step, over all requests: decoding waits for it."""
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    """For sampling without a seed of the request."""
    cpu_threads: int | None = Field(default=None, ge=1, le=1024)
    """Threads of each rank without a GPU. null: one for each core that the process may use."""
    cpu_cores: str = Field(default="nobind", pattern=r"^(auto|nobind|[0-9,|-]+)$")
    """Cores that a rank's threads are bound to without a GPU: nobind leaves it to the kernel, which suits workers that
    share cores; auto; or lists such as 0-3|4-7, one for each rank."""
    transfer_host: str = Field(default="127.0.0.1", min_length=1)
    """Address under which decode workers reach a prefill worker to take over a prompt's KV."""
    transfer_port: int = Field(default=0, ge=0, le=65535)
    """Port for it; 0 picks a free one. One that is named and taken is waited for, and the log says so."""
    engine_args: dict[EngineArgName, JsonValue] = {}
    """Further arguments of vLLM's engine by their Python names, as they are. Those that the worker sets itself are
    refused."""

    @field_validator("engine_args")
    @classmethod
    def _refuse_reserved(cls, engine_args: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name in engine_args:
            if name in RESERVED_ENGINE_ARGS:
                setting = RESERVED_ENGINE_ARGS[name]
                raise ValueError(f"{name} is set by the worker" + (f"; use {setting}" if setting else ""))
        return engine_args
