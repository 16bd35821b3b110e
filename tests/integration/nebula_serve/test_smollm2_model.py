"""The real SmolLM2, from the real package."""

from pathlib import Path

import msgspec
import pytest
from tokenizers import Tokenizer

from nebula_serve.model_folder import SMOLLM2_CONTEXT_TOKENS, check_model_folder, read_context_tokens
from nebula_serve.smollm2.model_folder import is_complete

pytestmark = pytest.mark.integration


class TokenizerConfig(msgspec.Struct):
    chat_template: str
    eos_token: str


@pytest.mark.timeout(600)
def test_the_model_is_complete_and_can_be_served(smollm2_dir: Path) -> None:
    assert is_complete(smollm2_dir)
    check_model_folder(smollm2_dir)
    # 134,515,008 weights of 2 bytes, and a header.
    assert (smollm2_dir / "model.safetensors").stat().st_size == pytest.approx(2 * 134_515_008, rel=1e-3)


def test_its_context_is_the_one_that_is_told_before_it_is_made(smollm2_dir: Path) -> None:
    assert read_context_tokens(smollm2_dir) == SMOLLM2_CONTEXT_TOKENS


def test_its_tokenizer_gives_the_models_own_tokens(smollm2_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2_dir / "tokenizer.json"))
    # As `transformers` reads them from the same file.
    assert tokenizer.encode("The capital of France is").ids == [504, 3575, 282, 4649, 314]
    assert tokenizer.encode("<|im_start|>user\n12<|im_end|>").ids[0] == 1
    text = "Été 2024: 漢字, didn't\n\n  it?"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_it_brings_a_chat_template(smollm2_dir: Path) -> None:
    content = (smollm2_dir / "tokenizer_config.json").read_bytes()
    config = msgspec.json.decode(content, type=TokenizerConfig)
    assert "<|im_start|>" in config.chat_template
    assert config.eos_token == "<|im_end|>"
