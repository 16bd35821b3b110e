"""What PIC refuses to run, read from the KV cache that the engine made."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed")

import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from pic_worker.adapters.vllm.kv_group_refusals import kv_group_refusals


def full(**changes: object) -> FullAttentionSpec:
    values: dict[str, object] = {"block_size": 32, "num_kv_heads": 2, "head_size": 32, "dtype": torch.bfloat16}
    return FullAttentionSpec(**(values | changes))  # type: ignore[arg-type]


def group(spec: KVCacheSpec) -> KVCacheGroupSpec:
    return KVCacheGroupSpec(layer_names=["model.layers.0.self_attn.attn"], kv_cache_spec=spec)


SLIDING = SlidingWindowSpec(block_size=32, num_kv_heads=2, head_size=32, dtype=torch.bfloat16, sliding_window=512)
MLA = MLAAttentionSpec(block_size=32, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
MAMBA = MambaSpec(block_size=32, shapes=((2, 4),), dtypes=(torch.float32,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_one_group_of_full_attention_in_plain_numbers_is_served(dtype: torch.dtype) -> None:
    layers = UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs={"0": full(dtype=dtype), "1": full(dtype=dtype)})
    assert kv_group_refusals([group(full(dtype=dtype))]) == ()
    assert kv_group_refusals([group(layers)]) == ()


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (SLIDING, "SlidingWindowSpec"),
        (MLA, "MLAAttentionSpec"),
        (MAMBA, "MambaSpec"),
        (full(sliding_window=128), "sliding_window=128"),
        (full(attention_chunk_size=256), "attention_chunk_size=256"),
        (full(dtype=torch.float8_e4m3fn), "float8_e4m3fn"),
        (full(dtype=torch.uint8), "uint8"),
    ],
    ids=["sliding", "MLA", "Mamba", "sliding as full", "chunked as full", "fp8", "bytes"],
)
def test_a_layer_of_another_kind_is_refused_with_the_way_out(spec: KVCacheSpec, named: str) -> None:
    (refusal,) = kv_group_refusals([group(spec)])
    assert named in refusal
    assert "pic: false" in refusal


def test_a_hybrid_model_is_refused_for_its_groups_and_for_its_layers() -> None:
    several, kind, size = kv_group_refusals([group(full()), group(MAMBA)])
    assert "2 groups" in several
    assert "MambaSpec" in kind
    assert "differs in size" in size


def test_a_layer_that_hides_among_others_is_found() -> None:
    layers = UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs={"0": full(), "1": full(sliding_window=64)})
    (refusal,) = kv_group_refusals([group(layers)])
    assert "sliding_window=64" in refusal


def test_layers_of_unequal_size_are_refused() -> None:
    layers = UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs={"0": full(), "1": full(num_kv_heads=4)})
    (refusal,) = kv_group_refusals([group(layers)])
    assert "differs in size" in refusal


def test_a_model_without_kv_is_refused() -> None:
    (refusal,) = kv_group_refusals([])
    assert "without attention" in refusal
