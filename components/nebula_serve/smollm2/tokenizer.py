"""The tokenizer that a GGUF file of SmolLM2 describes, as Hugging Face's files describe it."""

from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SUPPORTED_SPLIT = "smollm"


def read_tokenizer(reader: GGUFReader) -> Tokenizer:
    """A byte-level BPE that splits words as GPT-2 does and digits one by one.

    Raises:
        KeyError: the file holds no tokenizer.
        ValueError: its tokenizer splits text in another way.
    """
    split = reader.fields["tokenizer.ggml.pre"].contents()
    if split != SUPPORTED_SPLIT:
        raise ValueError(f"the tokenizer splits text as {split}, not as {SUPPORTED_SPLIT}")
    tokens: list[str] = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [_pair(merge) for merge in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in special_tokens(reader)]
    )
    return tokenizer


def special_tokens(reader: GGUFReader) -> list[str]:
    """Control tokens, in the order of their ids."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    return [token for token, kind in zip(tokens, types, strict=True) if kind == TokenType.CONTROL]


def tokenizer_config(reader: GGUFReader, context_tokens: int) -> dict[str, object]:
    """Contents of `tokenizer_config.json`, the chat template among them."""
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context_tokens,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": reader.fields["tokenizer.chat_template"].contents(),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        config[f"{name}_token"] = tokens[token_id(reader, key)]
    return config


def token_id(reader: GGUFReader, key: str) -> int:
    """Id of the token that has this part: bos, eos, unknown or padding."""
    return int(reader.fields[f"tokenizer.ggml.{key}_token_id"].contents())


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
