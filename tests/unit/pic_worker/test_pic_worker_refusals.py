"""What PIC refuses to run, read from configurations as models publish them."""

import json
from pathlib import Path

import pytest

from pic_worker.adapters.vllm.refusals import ModelConfig, pic_refusals, read_model_config
from pic_worker.errors import StartError

SMOLLM2 = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576,
  "num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30, "max_position_embeddings": 8192,
  "is_llama_config": true, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
  "torch_dtype": "bfloat16", "vocab_size": 49152}"""
LLAMA_31 = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
  "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rope_theta": 500000.0,
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "torch_dtype": "bfloat16"}"""
QWEN3 = """{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128, "hidden_size": 5120,
  "max_window_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 8, "rope_scaling": null,
  "rope_theta": 1000000, "sliding_window": null, "use_sliding_window": false}"""
QWEN25 = """{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584,
  "max_window_layers": 28, "rope_theta": 1000000.0, "sliding_window": 131072, "use_sliding_window": false}"""
QWEN3_AS_SAVED_BY_TRANSFORMERS_5 = """{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
  "layer_types": ["full_attention", "full_attention"], "sliding_window": null,
  "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}}"""
LINEAR = """{"model_type": "llama", "rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 4.0}}"""

QWEN3_NEXT = """{"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "full_attention_interval": 4,
  "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16, "partial_rotary_factor": 0.25,
  "rope_scaling": null, "rope_theta": 10000000}"""
QWEN35 = """{"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
  "text_config": {"layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "mrope_section": [11, 11, 10]}},
  "vision_config": {"depth": 27}}"""
NEMOTRON_H = """{"model_type": "nemotron_h", "hybrid_override_pattern": "M-M-M-M*-M-", "ssm_state_size": 128}"""
MISTRAL_01 = """{"architectures": ["MistralForCausalLM"], "model_type": "mistral", "rope_theta": 10000.0,
  "sliding_window": 4096}"""
GEMMA3 = """{"model_type": "gemma3_text", "sliding_window": 512, "rope_theta": 1000000,
  "layer_types": ["sliding_attention", "full_attention"]}"""
LLAMA4 = """{"model_type": "llama4", "text_config": {"attention_chunk_size": 8192, "no_rope_layers": [1, 1, 1, 0],
  "rope_scaling": {"rope_type": "llama3", "factor": 16.0}}, "vision_config": {"hidden_size": 1408}}"""
SMOLLM3 = """{"model_type": "smollm3", "no_rope_layers": [1, 1, 1, 0], "rope_theta": 5000000.0, "sliding_window": null,
  "use_sliding_window": false, "layer_types": ["full_attention", "full_attention"]}"""
DEEPSEEK_V3 = """{"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "kv_lora_rank": 512,
  "q_lora_rank": 1536, "qk_rope_head_dim": 64, "rope_theta": 10000,
  "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}}"""
QWEN2_VL = """{"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl",
  "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "sliding_window": 32768,
  "use_sliding_window": false, "vision_config": {"depth": 32}}"""
QWEN3_YARN = """{"model_type": "qwen3", "rope_theta": 1000000, "sliding_window": null,
  "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}"""
PHI3_LONG = """{"model_type": "phi3", "sliding_window": 262144,
  "rope_scaling": {"type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}}"""
GPT_OSS_ROPE = """{"model_type": "x", "rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 32.0},
  "other_attention": {"rope_type": "default"}}}"""
GPT2 = """{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_positions": 1024}"""
FALCON_ALIBI = """{"model_type": "falcon", "alibi": true}"""
FP8_CHECKPOINT = """{"model_type": "llama", "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8",
  "kv_cache_quant_algo": "FP8"}}"""
T5 = """{"model_type": "t5", "is_encoder_decoder": true}"""


def config_of(text: str) -> ModelConfig:
    config = json.loads(text)
    assert isinstance(config, dict)
    return config


@pytest.mark.parametrize(
    "text",
    [SMOLLM2, LLAMA_31, QWEN3, QWEN25, QWEN3_AS_SAVED_BY_TRANSFORMERS_5, LINEAR],
    ids=["SmolLM2", "Llama 3.1", "Qwen3", "Qwen2.5", "Qwen3, transformers 5", "linear scaling"],
)
def test_models_with_full_attention_and_plain_rotary_positions_are_served(text: str) -> None:
    harmless = {"kv_cache_dtype": "bfloat16", "data_parallel_size": 2, "pipeline_parallel_size": 1}
    assert pic_refusals(config_of(text), {}) == ()
    assert pic_refusals(config_of(text), harmless) == ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (QWEN3_NEXT, ["linear_conv_kernel_dim"]),
        (QWEN35, ["layer_types has linear_attention", "rope_parameters.mrope_section", "vision_config"]),
        (NEMOTRON_H, ["hybrid_override_pattern"]),
        (MISTRAL_01, ["sliding_window=4096"]),
        (GEMMA3, ["layer_types has sliding_attention"]),
        (LLAMA4, ["attention_chunk_size=8192", "no_rope_layers", "vision_config"]),
        (SMOLLM3, ["no_rope_layers"]),
        (DEEPSEEK_V3, ["kv_lora_rank=512", "rope_scaling.rope_type=yarn"]),
        (QWEN2_VL, ["rope_scaling.mrope_section", "vision_config"]),
        (QWEN3_YARN, ["rope_scaling.rope_type=yarn"]),
        (PHI3_LONG, ["sliding_window=262144", "rope_scaling.rope_type=longrope"]),
        (GPT_OSS_ROPE, ["rope_parameters.full_attention.rope_type=yarn"]),
        (GPT2, ["model_type=gpt2"]),
        (FALCON_ALIBI, ["alibi"]),
        (FP8_CHECKPOINT, ["quantization_config.kv_cache_quant_algo"]),
        (T5, ["is_encoder_decoder"]),
    ],
    ids=lambda value: str(config_of(value).get("model_type")) if isinstance(value, str) else "",
)
def test_a_model_is_refused_with_one_line_for_each_reason(text: str, named: list[str]) -> None:
    refusals = pic_refusals(config_of(text), {})
    assert len(refusals) == len(named)
    for refusal, setting in zip(refusals, named, strict=True):
        assert setting in refusal
        assert "\n" not in refusal


@pytest.mark.parametrize(
    ("engine_args", "named"),
    [
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype=fp8"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "kv_cache_dtype=fp8_e4m3"),
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2"),
        ({"decode_context_parallel_size": 2}, "decode_context_parallel_size=2"),
        ({"data_parallel_size": 2, "enable_expert_parallel": True}, "data_parallel_size=2, enable_expert_parallel"),
        ({"speculative_config": {"method": "ngram"}}, "speculative_config"),
        ({"enable_lora": True}, "enable_lora"),
        ({"hf_overrides": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}}, "rope_scaling.rope_type=yarn"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_engine_is_refused_by_the_name_of_the_argument(engine_args: dict[str, object], named: str) -> None:
    (refusal,) = pic_refusals(config_of(QWEN3), engine_args)
    assert named in refusal


def test_expert_parallel_alone_is_served() -> None:
    assert pic_refusals(config_of(QWEN3), {"enable_expert_parallel": True}) == ()


def test_each_line_says_how_the_model_can_be_served_without_pic() -> None:
    refusals = pic_refusals(config_of(QWEN35), {"enable_lora": True, "kv_cache_dtype": "fp8"})
    assert len(refusals) == 5
    assert all("pic: false" in refusal and "exact prefix caching only" in refusal for refusal in refusals)


def test_a_model_s_configuration_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(QWEN3)
    assert read_model_config(tmp_path) == config_of(QWEN3)


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), ("{", "is no JSON"), ("[]", "is no JSON object")]
)
def test_a_folder_without_a_configuration_is_an_error_of_start(
    tmp_path: Path, content: str | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(StartError, match=reason):
        read_model_config(tmp_path)
