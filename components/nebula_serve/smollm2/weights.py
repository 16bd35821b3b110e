"""Weights of a Llama model in a GGUF file, as a Hugging Face checkpoint has them: other names, bfloat16."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

_ALIGNMENT_BYTES = 8
_OUTER_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class LlamaShape:
    num_layers: int
    num_heads: int
    num_kv_heads: int
    hidden_size: int
    intermediate_size: int
    head_dim: int
    vocabulary_size: int
    context_tokens: int
    rope_theta: float
    norm_epsilon: float

    @classmethod
    def read(cls, reader: GGUFReader) -> "LlamaShape":
        """
        Raises:
            KeyError: the file describes no Llama model.
        """

        def number(key: str) -> float:
            return float(reader.fields[f"llama.{key}"].contents())

        return cls(
            num_layers=int(number("block_count")),
            num_heads=int(number("attention.head_count")),
            num_kv_heads=int(number("attention.head_count_kv")),
            hidden_size=int(number("embedding_length")),
            intermediate_size=int(number("feed_forward_length")),
            head_dim=int(number("rope.dimension_count")),
            vocabulary_size=int(number("vocab_size")),
            context_tokens=int(number("context_length")),
            rope_theta=number("rope.freq_base"),
            # Stored as float32: 9.9999997e-06 stands for 1e-05.
            norm_epsilon=float(f"{number('attention.layer_norm_rms_epsilon'):.6g}"),
        )


def write_checkpoint(reader: GGUFReader, shape: LlamaShape, target: Path) -> None:
    """Writes every tensor as bfloat16 into one safetensors file.

    Raises:
        KeyError: a tensor of the file has no place in a Llama model.
        OSError: the file cannot be written.
    """
    write_safetensors({name: to_bfloat16(values) for name, values in named_tensors(reader, shape)}, target)


def write_safetensors(tensors: Mapping[str, NDArray[np.uint16]], target: Path) -> None:
    """Writes bits of bfloat16 numbers: the length of a JSON header, the header, the tensors one after the other.

    The safetensors package itself takes bfloat16 from PyTorch only.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": bits.shape, "data_offsets": (offset, offset + bits.nbytes)}
        offset += bits.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    with target.open("wb") as out:
        out.write(len(text).to_bytes(8, "little"))
        out.write(text)
        for bits in tensors.values():
            out.write(bits.astype("<u2", copy=False).tobytes())


def named_tensors(reader: GGUFReader, shape: LlamaShape) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Each tensor under its Hugging Face name, in float32; matrices as [out, in].

    Raises:
        KeyError: a tensor has no place in a Llama model.
    """
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in _OUTER_NAMES:
            yield _OUTER_NAMES[tensor.name], values
            continue
        _, layer, kind, _ = tensor.name.split(".")
        if kind in ("attn_q", "attn_k"):
            values = unpermuted(values, shape.num_heads if kind == "attn_q" else shape.num_kv_heads)
        yield f"model.layers.{layer}.{_LAYER_NAMES[kind]}.weight", values


def unpermuted(weights: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows of a query or key projection in the order that rotates halves of a head.

    GGUF keeps the two numbers that are rotated together side by side (`LlamaModel.permute` of llama.cpp's converter);
    Hugging Face's Llama has them half a head apart.
    """
    half = weights.shape[0] // num_heads // 2
    pairs = weights.reshape(num_heads, half, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even; finite values only."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
