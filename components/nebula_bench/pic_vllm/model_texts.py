"""Real texts in a model's tokens."""

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from nebula_bench.errors import BenchError, TraceError


class _Line(msgspec.Struct, frozen=True):
    text: str


@dataclass(frozen=True, slots=True)
class ModelTexts:
    texts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]
    """Of each text."""
    vocabulary_tokens: int
    encode: Callable[[str], Sequence[int]]
    """Adds no tokens of its own."""


def read_model_texts(model: Path, passages: Path) -> ModelTexts:
    """
    Raises:
        BenchError: the model's folder has no tokenizer.
        TraceError: the texts cannot be read.
    """
    path = model / "tokenizer.json"
    if not path.is_file():
        raise BenchError(f"no tokenizer at {path}; `make model` makes the default model")
    tokenizer = Tokenizer.from_file(str(path))

    def encode(text: str) -> Sequence[int]:
        token_ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return token_ids

    try:
        lines = gzip.decompress(passages.read_bytes()).splitlines()
        texts = tuple(msgspec.json.decode(line, type=_Line).text for line in lines)
    except (OSError, EOFError, msgspec.MsgspecError) as error:
        raise TraceError(str(passages), str(error)) from error
    return ModelTexts(
        texts=texts,
        token_ids=tuple(tuple(encode(text)) for text in texts),
        vocabulary_tokens=tokenizer.get_vocab_size(),
        encode=encode,
    )
