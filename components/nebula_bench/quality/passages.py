"""Real texts to make prompts of."""

import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nebula_bench.errors import TraceError

_QUOTED_WORDS = 10
_TITLE = "[Document]"


class _Line(msgspec.Struct, frozen=True):
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    id: str
    tokens: tuple[int, ...]
    quote: str
    """Its first words, by which a question names it."""


def read_passages(path: Path, encode: Callable[[str], Sequence[int]], min_tokens: int) -> tuple[Passage, ...]:
    """Those of at least `min_tokens`, in the file's order.

    Raises:
        TraceError: the file cannot be read, or a line of it is no passage.
    """
    decoder = msgspec.json.Decoder(_Line)
    passages: list[Passage] = []
    try:
        lines = gzip.decompress(path.read_bytes()).splitlines()
    except (OSError, EOFError) as error:
        raise TraceError(str(path), str(error)) from error
    for number, line in enumerate(lines, start=1):
        try:
            passage = _read(decoder.decode(line), encode)
        except msgspec.MsgspecError as error:
            raise TraceError(str(path), str(error), number) from error
        if len(passage.tokens) >= min_tokens:
            passages.append(passage)
    return tuple(passages)


def _read(line: _Line, encode: Callable[[str], Sequence[int]]) -> Passage:
    words = line.text.removeprefix(_TITLE).split()
    return Passage(line.id, tuple(encode(line.text)), " ".join(words[:_QUOTED_WORDS]))
