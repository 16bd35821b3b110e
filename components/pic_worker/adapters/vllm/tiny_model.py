"""A model of a few megabytes with seeded random weights, for tests of exactness: it starts and prefills in no time.

Random weights say nothing about quality: the answers are noise, but always the same noise.
"""

import json
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

HIDDEN_SIZE: Final = 256
NUM_LAYERS: Final = 4
NUM_HEADS: Final = 8
NUM_KV_HEADS: Final = 2
"""Two, so that two ranks have one each."""
HEAD_DIM: Final = 32
"""The least that vLLM's CPU kernels take."""
MAX_POSITIONS: Final = 32_768

_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
# Wide enough that attention is not nearly uniform, which would hide a wrong mask or rotation.
_INITIALIZER_RANGE: Final = 0.1


class TinyArchitecture(StrEnum):
    QWEN3 = "qwen3"
    """Plain RoPE, keys normalised per head."""
    LLAMA = "llama"
    """RoPE scaled as Llama 3.1 does it."""


def write_tiny_model(
    folder: Path,
    *,
    tokenizer_folder: Path,
    architecture: TinyArchitecture = TinyArchitecture.QWEN3,
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """Writes configuration, weights and a copy of the tokenizer to `folder`; the same arguments give the same weights.

    Raises:
        OSError: a folder cannot be read or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in _TOKENIZER_FILES:
        if (tokenizer_folder / name).exists():
            shutil.copyfile(tokenizer_folder / name, folder / name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _new_model(architecture, _vocabulary_of(tokenizer_folder))
    torch.nn.Module.to(model, dtype)
    model.save_pretrained(folder)
    return folder


def _new_model(architecture: TinyArchitecture, vocabulary: dict[str, int | None]) -> PreTrainedModel:
    # Their constructors carry no types.
    qwen3: Any = Qwen3ForCausalLM
    llama: Any = LlamaForCausalLM
    shape: dict[str, Any] = {
        **vocabulary,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": 2 * HIDDEN_SIZE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": MAX_POSITIONS,
        "initializer_range": _INITIALIZER_RANGE,
        "tie_word_embeddings": False,
    }
    model: PreTrainedModel
    match architecture:
        case TinyArchitecture.QWEN3:
            model = qwen3(Qwen3Config(**shape, rope_parameters=_rope("default")))
        case TinyArchitecture.LLAMA:
            scaled = _rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=MAX_POSITIONS // 8,
            )
            model = llama(LlamaConfig(**shape, rope_parameters=scaled))
    return model


def _rope(kind: str, **scaling: float) -> dict[str, str | float]:
    return {"rope_type": kind, "rope_theta": 500_000.0, **scaling}


def _vocabulary_of(tokenizer_folder: Path) -> dict[str, int | None]:
    """Its size, as a multiple of 64 that ranks can share out, and the ids of special tokens."""
    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    names = json.loads((tokenizer_folder / "tokenizer_config.json").read_text(encoding="utf-8"))

    def id_of(role: str) -> int | None:
        name = names.get(role)
        return tokenizer.token_to_id(name) if isinstance(name, str) else None

    return {
        "vocab_size": -(-tokenizer.get_vocab_size() // 64) * 64,
        "bos_token_id": id_of("bos_token"),
        "eos_token_id": id_of("eos_token"),
        "pad_token_id": id_of("pad_token"),
    }
