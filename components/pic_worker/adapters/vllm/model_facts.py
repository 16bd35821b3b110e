"""What must be known of a model whose KV is kept and handed on."""

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

from vllm.config import VllmConfig
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype

from nebula_protocol.domain import Domain
from pic_worker.settings import WorkerSettings

_REVISION_DIGITS = 16


@dataclass(frozen=True, slots=True)
class ModelFacts:
    domain: Domain
    num_layers: int
    kv_bytes_per_token: int
    """Of all ranks together."""
    vocabulary: int
    """Token ids are below this."""
    device_capacity_tokens: int = 0

    def with_capacity(self, num_tokens: int) -> "ModelFacts":
        return replace(self, device_capacity_tokens=num_tokens)


def read_model_facts(settings: WorkerSettings, config: VllmConfig) -> ModelFacts:
    model, parallel = config.model_config, config.parallel_config
    dtype = str(model.dtype).removeprefix("torch.")
    kv_dtype = config.cache_config.cache_dtype
    value_bytes = kv_cache_dtype_str_to_dtype(kv_dtype, model).itemsize
    num_layers = model.get_num_layers(parallel)
    # Fewer heads than ranks are doubled, so this is not the model's own number.
    num_heads = model.get_num_kv_heads(parallel) * parallel.tensor_parallel_size
    values_per_token = 2 * num_layers * num_heads * model.get_head_size()
    return ModelFacts(
        domain=Domain(
            model=settings.model_name,
            revision=model_revision(Path(settings.model_path)),
            dtype=dtype,
            kv_dtype=dtype if kv_dtype == "auto" else kv_dtype,
            block_size_tokens=settings.block_size_tokens,
            kv_layout=f"vllm-pages/{settings.vllm.page_tokens}",
            tensor_parallel=parallel.tensor_parallel_size,
            rope=json.dumps(_rope(model.hf_text_config.to_dict()), sort_keys=True),
        ),
        num_layers=num_layers,
        kv_bytes_per_token=values_per_token * value_bytes,
        vocabulary=model.get_vocab_size(),
    )


def model_revision(folder: Path) -> str:
    """Differs when configuration or weights do: over the configuration, and names and sizes of the weights' files."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
    return digest.hexdigest()[:_REVISION_DIGITS]


def _rope(config: dict[str, object]) -> dict[str, object]:
    return {name: config[name] for name in ("rope_parameters", "rope_scaling", "rope_theta") if config.get(name)}
