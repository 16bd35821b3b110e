"""What position-independent reuse cannot do, found in the KV cache that the engine made for the model."""

from collections.abc import Iterator, Sequence

import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, KVCacheSpec, UniformTypeKVCacheSpecs

from pic_worker.adapters.vllm.refusals import WAY_OUT

_PLAIN_DTYPES = frozenset({torch.float32, torch.float16, torch.bfloat16})


def kv_group_refusals(groups: Sequence[KVCacheGroupSpec]) -> tuple[str, ...]:
    """One line for each reason; none for one group of layers with full attention, all alike, in plain numbers.

    The last word on what `refusals` reads from a model's configuration: here every layer shows what it is.
    """
    specs = [spec for group in groups for spec in _layer_specs(group.kv_cache_spec)]
    found = (*_group_reasons(groups), *(reason for spec in specs for reason in _layer_reasons(spec)))
    if len({(spec.page_size_bytes, spec.block_size) for spec in specs}) > 1:
        found += ("layers whose KV differs in size",)
    return tuple(f"PIC does not work with {reason}; {WAY_OUT}" for reason in dict.fromkeys(found))


def _layer_specs(spec: KVCacheSpec) -> tuple[KVCacheSpec, ...]:
    return tuple(spec.kv_cache_specs.values()) if isinstance(spec, UniformTypeKVCacheSpecs) else (spec,)


def _group_reasons(groups: Sequence[KVCacheGroupSpec]) -> Iterator[str]:
    if not groups:
        yield "models without attention: there is no KV to reuse"
    elif len(groups) > 1:
        kinds = sorted({type(spec).__name__ for group in groups for spec in _layer_specs(group.kv_cache_spec)})
        yield f"{len(groups)} groups of layers with block tables of their own ({', '.join(kinds)})"


def _layer_reasons(spec: KVCacheSpec) -> Iterator[str]:
    # Its subclasses are other kinds of attention: MLA, sinks, learned windows.
    if type(spec) is not FullAttentionSpec:
        yield f"this kind of attention ({type(spec).__name__})"
        return
    if spec.sliding_window is not None:
        yield f"sliding windows (sliding_window={spec.sliding_window})"
    if spec.attention_chunk_size is not None:
        yield f"chunked attention (attention_chunk_size={spec.attention_chunk_size})"
    if spec.dtype not in _PLAIN_DTYPES:
        yield f"a quantized KV cache ({spec.dtype}): keys are not rotated in it"
