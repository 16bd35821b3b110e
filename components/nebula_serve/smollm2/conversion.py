"""From one GGUF file to the files of a Hugging Face model folder."""

import json
from pathlib import Path

from gguf import GGUFReader

from nebula_serve.smollm2.tokenizer import read_tokenizer, token_id, tokenizer_config
from nebula_serve.smollm2.weights import LlamaShape, write_checkpoint


def convert(weights_file: Path, folder: Path) -> None:
    """Writes configuration, tokenizer and weights (bfloat16) into `folder`, which exists.

    Raises:
        KeyError: the file holds no Llama model.
        ValueError: it is no GGUF file, or its tokenizer is of another kind.
        OSError: a file cannot be read or written.
    """
    reader = GGUFReader(weights_file)
    shape = LlamaShape.read(reader)
    read_tokenizer(reader).save(str(folder / "tokenizer.json"), pretty=False)
    _write_json(folder / "tokenizer_config.json", tokenizer_config(reader, shape.context_tokens))
    _write_json(folder / "generation_config.json", _special_ids(reader) | {"eos_token_id": _end_ids(reader)})
    _write_json(folder / "config.json", _model_config(shape) | _special_ids(reader))
    write_checkpoint(reader, shape, folder / "model.safetensors")


def _model_config(shape: LlamaShape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocabulary_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context_tokens,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
    }


def _special_ids(reader: GGUFReader) -> dict[str, object]:
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    return {f"{name}_token_id": token_id(reader, key) for name, key in names.items()}


def _end_ids(reader: GGUFReader) -> list[int]:
    """The end of a turn, and the end of a text: the model was trained with both."""
    return [token_id(reader, "eos"), token_id(reader, "unknown")]


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
