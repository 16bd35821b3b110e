"""Rebuilds the `sim` model's tokenizer: `python -m nebula_serve.sim_model.train PASSAGES.jsonl.gz`."""

import argparse
import gzip
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from nebula_serve.sim_model.model_folder import SPECIAL_TOKENS, packaged_folder

VOCABULARY_TOKENS = 8192
"""Including the 256 bytes and the special tokens. Small, as the training text is (770,000 characters)."""

# Words with their leading space, single digits and line breaks are kept apart before merging, as the
# tokenizers of current open models do it: seams between passages then behave as they do with those models.
WORD_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Passage(msgspec.Struct):
    """One line of the training file; other keys are ignored."""

    text: str


def read_passages(path: Path) -> Iterator[str]:
    """Yields the text of every line of a gzipped JSON-lines file.

    Raises:
        OSError: the file cannot be read.
        msgspec.ValidationError: a line has no `text`.
    """
    decoder = msgspec.json.Decoder(Passage)
    with gzip.open(path, "rb") as lines:
        for line in lines:
            yield decoder.decode(line).text


def train_tokenizer(texts: Iterator[str]) -> Tokenizer:
    """Trains a byte-level BPE; the same texts in the same order give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_TOKENS,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main() -> None:
    """Trains on the given passages and overwrites the packaged `tokenizer.json`, or `--out`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("passages", type=Path, help="gzipped JSON lines with a `text` each")
    parser.add_argument("--out", type=Path, default=packaged_folder() / "tokenizer.json")
    arguments = parser.parse_args()
    train_tokenizer(read_passages(arguments.passages)).save(str(arguments.out), pretty=False)


if __name__ == "__main__":
    main()
