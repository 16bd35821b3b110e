"""What position-independent reuse cannot do, found in a model's own configuration and in vLLM's arguments.

Reuse needs KV that depends on a token's position by a rotation alone, in every layer, token by token, in one engine
process. What only the running engine knows is checked in `kv_group_refusals`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from pic_worker.errors import StartError

ModelConfig = Mapping[str, object]
"""A Hugging Face `config.json`."""

SUPPORTED_ROPE_TYPES: Final = frozenset({"default", "linear", "llama3"})
"""Those whose angle is a position times a frequency that does not depend on the prompt, at magnitude 1."""

WAY_OUT: Final = "pic: false (--Common.pic=false) serves the model with exact prefix caching only"

_FULL_ATTENTION = frozenset({"full_attention", "attention"})
_WINDOWED_ATTENTION = frozenset({"sliding_attention", "chunked_attention", "sliding_window_attention"})
_PLAIN_KV_DTYPES = frozenset({"auto", "bfloat16", "float16", "float32", "half", "float"})
_ABSOLUTE_POSITION_MODELS = frozenset(
    {"bloom", "gpt2", "gpt_bigcode", "gpt_neo", "mpt", "opt", "openai-gpt", "xglm", "biogpt", "ctrl"}
)
_RECURRENT_FIELDS = (
    "attn_layer_period",
    "attn_layer_indices",
    "hybrid_override_pattern",
    "layers_block_type",
    "linear_conv_kernel_dim",
    "lru_width",
    "mamba_d_state",
    "ssm_cfg",
    "ssm_state_size",
    "state_size",
)
"""Of Jamba, Bamba, Nemotron-H, Zamba2, Qwen3-Next, RecurrentGemma, Falcon-H1, Mamba 1 and 2 and their kin."""
_MULTIMODAL_FIELDS = ("vision_config", "audio_config", "thinker_config", "vision_tower", "mm_vision_tower")
_ROPE_FIELDS = ("rope_parameters", "rope_scaling")


def read_model_config(folder: Path) -> ModelConfig:
    """
    Raises:
        StartError: there is no `config.json`, or it holds no object.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise StartError(f"the model's configuration {path}: {error.strerror}") from error
    except ValueError as error:
        raise StartError(f"the model's configuration {path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise StartError(f"the model's configuration {path} is no JSON object")
    return config


def pic_refusals(config: ModelConfig, engine_args: Mapping[str, object]) -> tuple[str, ...]:
    """One line for each reason why this model cannot run so with PIC; none: it can.

    Args:
        config: As the model's folder has it.
        engine_args: What vLLM is told beyond its defaults, by the Python names of its arguments.
    """
    overrides = engine_args.get("hf_overrides")
    whole = {**config, **overrides} if isinstance(overrides, Mapping) else config
    text = _text_config(whole)
    found = (*_model_reasons(whole, text), *_engine_reasons(engine_args, whole))
    return tuple(f"PIC does not work with {reason}; {WAY_OUT}" for reason in dict.fromkeys(found))


def _text_config(config: ModelConfig) -> ModelConfig:
    """What describes the language model: a section of its own in multimodal models."""
    thinker = _section(config, "thinker_config") or config
    return _section(thinker, "text_config") or thinker


def _model_reasons(whole: ModelConfig, text: ModelConfig) -> Iterator[str]:
    yield from _recurrence(text)
    yield from _windows(text)
    if text.get("kv_lora_rank") is not None:
        yield f"multi-head latent attention (kv_lora_rank={text['kv_lora_rank']}): untested"
    yield from _positions(text)
    yield from _rope(text)
    given = [name for name in _MULTIMODAL_FIELDS if whole.get(name) is not None]
    if given:
        yield f"multimodal models ({given[0]}): equal placeholder tokens stand for different images"
    if whole.get("is_encoder_decoder") is True:
        yield "encoder-decoder models (is_encoder_decoder=true)"


def _recurrence(text: ModelConfig) -> Iterator[str]:
    reason = "a recurrent layer needs every token before it"
    others = sorted(set(_strings(text.get("layer_types"))) - _FULL_ATTENTION - _WINDOWED_ATTENTION)
    fields = [name for name in _RECURRENT_FIELDS if text.get(name) is not None]
    if others:
        yield f"hybrid models (layer_types has {others[0]}): {reason}"
    elif fields and "layer_types" not in text:
        yield f"recurrent or hybrid models ({fields[0]}): {reason}"


def _windows(text: ModelConfig) -> Iterator[str]:
    reason = "a reused token may have seen other tokens than its new window holds"
    windowed = sorted(set(_strings(text.get("layer_types"))) & _WINDOWED_ATTENTION)
    window = text.get("sliding_window")
    if windowed:
        yield f"sliding windows (layer_types has {windowed[0]}): {reason}"
    elif window is not None and "layer_types" not in text and text.get("use_sliding_window", True) is True:
        yield f"sliding windows (sliding_window={window}): {reason}"
    if text.get("attention_chunk_size") is not None and not windowed:
        yield f"chunked attention (attention_chunk_size={text['attention_chunk_size']}): {reason}"
    if text.get("dual_chunk_attention_config") is not None:
        yield "dual chunk attention (dual_chunk_attention_config): keys are rotated by their place in a chunk"


def _positions(text: ModelConfig) -> Iterator[str]:
    """Positions that no rotation of keys can change."""
    attention = _section(text, "attn_config") or {}
    kind = text.get("position_embedding_type", text.get("position_encoding_type"))
    if text.get("alibi") is True or attention.get("alibi") is True or kind == "alibi":
        yield "ALiBi (alibi): untested"
    elif text.get("model_type") in _ABSOLUTE_POSITION_MODELS:
        yield f"positions that are no rotation (model_type={text['model_type']})"
    elif isinstance(kind, str) and kind not in {"rope", "rotary"}:
        yield f"positions that are no rotation ({kind})"
    layers = text.get("no_rope_layers")
    # A 1 stands for a layer with rotary positions, a 0 for one without.
    if isinstance(layers, Sequence) and not all(layers):
        yield "layers without rotary positions (no_rope_layers)"


def _rope(text: ModelConfig) -> Iterator[str]:
    for name, rope in _rope_sections(text):
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "mrope" or any(rope.get(key) is not None for key in ("mrope_section", "xdrope_section")):
            yield f"M-RoPE ({name}.mrope_section): a token has more than one position"
        elif kind == "yarn" or (isinstance(kind, str) and kind.endswith("yarn")):
            yield f"YaRN ({name}.rope_type={kind}): untested"
        elif kind not in SUPPORTED_ROPE_TYPES:
            known = ", ".join(sorted(SUPPORTED_ROPE_TYPES))
            yield f"this scaling of positions ({name}.rope_type={kind}); it knows {known}"
        elif rope.get("use_fope") is True:
            yield f"Fourier positions ({name}.use_fope)"


def _rope_sections(text: ModelConfig) -> Iterator[tuple[str, ModelConfig]]:
    """With names. `rope_parameters` may have a section for each type of layer."""
    for name in _ROPE_FIELDS:
        rope = _section(text, name)
        if rope is None:
            continue
        nested = {key: value for key, value in rope.items() if isinstance(value, Mapping)}
        if nested:
            yield from ((f"{name}.{key}", cast("ModelConfig", value)) for key, value in nested.items())
        else:
            yield name, rope


def _engine_reasons(engine_args: Mapping[str, object], whole: ModelConfig) -> Iterator[str]:
    kv_dtype = engine_args.get("kv_cache_dtype", "auto")
    if kv_dtype not in _PLAIN_KV_DTYPES:
        yield f"a quantized KV cache (kv_cache_dtype={kv_dtype}): keys are not rotated in it"
    elif kv_dtype == "auto" and (scheme := _checkpoint_kv_scheme(whole)) is not None:
        yield f"a quantized KV cache (quantization_config.{scheme} of the model): keys are not rotated in it"
    for name, what in (
        ("pipeline_parallel_size", "pipeline parallelism"),
        ("decode_context_parallel_size", "context parallelism"),
        ("prefill_context_parallel_size", "context parallelism"),
    ):
        if _number(engine_args.get(name)) > 1:
            yield f"{what} ({name}={engine_args[name]}): a rank would not have all of a token's layers"
    if _number(engine_args.get("data_parallel_size")) > 1 and engine_args.get("enable_expert_parallel") is True:
        size = engine_args["data_parallel_size"]
        yield (
            f"data parallel with expert parallel (data_parallel_size={size}, enable_expert_parallel): "
            "ranks would wait for each other in forward passes that only one of them runs"
        )
    if engine_args.get("speculative_config") is not None or engine_args.get("speculative_model") is not None:
        yield "speculative decoding (speculative_config): the draft model's KV is not stored"
    if engine_args.get("enable_lora") is True:
        yield "LoRA (enable_lora): untested"


def _checkpoint_kv_scheme(whole: ModelConfig) -> str | None:
    """The field by which a checkpoint makes vLLM quantize KV by itself."""
    quantization = _section(whole, "quantization_config")
    if quantization is None:
        return None
    inner = _section(quantization, "quantization") or {}
    for field in ("kv_cache_scheme", "kv_cache_quant_algo"):
        if quantization.get(field) is not None or inner.get(field) is not None:
            return field
    return None


def _section(config: ModelConfig, name: str) -> ModelConfig | None:
    value = config.get(name)
    return cast("ModelConfig", value) if isinstance(value, Mapping) else None


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list | tuple) else []


def _number(value: object) -> int:
    return value if isinstance(value, int) else 1
