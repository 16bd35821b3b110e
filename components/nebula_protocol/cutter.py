"""Cuts a prompt into segments. Pure in the tokens and the configuration, so router and worker agree without a word.

Marks in order of precedence: the client's spans, separators, starts of chat messages, content-defined seams. A mark
divides only what those before it left. What a message start begins belongs to the message: chat templates put the same
special tokens around the same message, which no tokenizer merges with text, so they cost no stability of the key, and
left outside they would be computed anew for every message.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from operator import itemgetter

import msgspec
import numpy as np

from nebula_protocol.content_chunks import Positions, find_seams
from nebula_protocol.cutting import ContentChunks, CutterConfig
from nebula_protocol.errors import SpanError
from nebula_protocol.hashing import HashArray, hash_blocks, hash_segments
from nebula_protocol.layout import Mark, PromptLayout, Segment
from nebula_protocol.tokens import TokenArray

# Looking a member up in its class takes longer than all else that is done for a piece.
_SPAN, _SEPARATOR, _MESSAGE, _CONTENT = Mark.SPAN, Mark.SEPARATOR, Mark.MESSAGE, Mark.CONTENT


class _Piece(msgspec.Struct, frozen=True, gc=False):
    """Tokens [start, end) that may become a segment, or several by content."""

    start: int
    end: int
    mark: Mark
    whole: bool
    """Delimited on purpose on both sides: never divided further."""


def cut_prompt(
    tokens: TokenArray,
    config: CutterConfig,
    *,
    block_size_tokens: int,
    block_hashes: HashArray | None = None,
    spans: tuple[tuple[int, int], ...] = (),
    pic: bool = True,
) -> PromptLayout:
    """The prompt's block hashes and segments.

    The last segment may end with the prompt; that one token at least is computed anyway is the planner's rule. One
    text that occurs twice gives two segments with one key. Without `pic` there are no segments, but spans are checked.

    Raises:
        SpanError: a span is empty, reaches outside the prompt, or overlaps another. Any order is fine.
    """
    if block_hashes is None:
        block_hashes = hash_blocks(tokens, block_size_tokens)
    ordered_spans = _checked_spans(spans, len(tokens))
    return PromptLayout(
        tokens=tokens,
        block_size_tokens=block_size_tokens,
        block_hashes=block_hashes,
        segments=_cut_segments(tokens, config, ordered_spans) if pic else (),
    )


def _checked_spans(spans: tuple[tuple[int, int], ...], num_tokens: int) -> list[tuple[int, int]]:
    ordered = sorted(spans)
    previous_end = 0
    for start, end in ordered:
        if start >= end:
            raise SpanError(f"span [{start}, {end}) is empty")
        if start < 0 or end > num_tokens:
            raise SpanError(f"span [{start}, {end}) is outside the prompt of {num_tokens} tokens")
        if start < previous_end:
            raise SpanError(f"span [{start}, {end}) overlaps the one before it, which ends at {previous_end}")
        previous_end = end
    return ordered


def _cut_segments(tokens: TokenArray, config: CutterConfig, spans: Sequence[tuple[int, int]]) -> tuple[Segment, ...]:
    shortest = config.min_segment_tokens
    # Content only makes pieces shorter, so the short ones may go before it as well as after.
    pieces = [piece for piece in _divide_by_marks(tokens, config, spans) if piece.end - piece.start >= shortest]
    if config.content_chunks is not None:
        pieces = _divide_by_content(tokens, pieces, config.content_chunks)
        pieces = [piece for piece in pieces if piece.end - piece.start >= shortest]
    keys = hash_segments(tokens, [(piece.start, piece.end) for piece in pieces])
    return tuple(Segment(piece.start, piece.end, key, piece.mark) for piece, key in zip(pieces, keys, strict=True))


def _divide_by_marks(tokens: TokenArray, config: CutterConfig, spans: Sequence[tuple[int, int]]) -> Iterator[_Piece]:
    """Spans and the stretches between marks, ascending; separators are left out."""
    walls = [(start, end, _SPAN) for start, end in spans]
    separators = _find_separators(tokens, config.separators, spans)
    if separators:
        walls += [(start, end, _SEPARATOR) for start, end in separators]
        walls.sort(key=itemgetter(0))
    walls.append((len(tokens), len(tokens), _CONTENT))
    message_starts = _find_message_starts(tokens, config.message_starts)
    next_start = 0
    at, left = 0, _CONTENT
    for wall_start, wall_end, wall in walls:
        # Message starts inside the wall before, which are its text, lie below `at` by now.
        first = bisect_left(message_starts, at, next_start)
        next_start = bisect_left(message_starts, wall_start, first)
        for start in message_starts[first:next_start]:
            if start > at:
                yield _stretch(at, start, left, _MESSAGE)
            at, left = start, _MESSAGE
        if wall_start > at:
            yield _stretch(at, wall_start, left, wall)
        if wall is _SPAN:
            yield _Piece(wall_start, wall_end, _SPAN, True)
        at, left = wall_end, wall


def _stretch(start: int, end: int, left: Mark, right: Mark) -> _Piece:
    if left is _SEPARATOR or right is _SEPARATOR:
        return _Piece(start, end, _SEPARATOR, left is right)
    is_message = left is _MESSAGE or right is _MESSAGE
    return _Piece(start, end, _MESSAGE if is_message else _CONTENT, False)


def _divide_by_content(tokens: TokenArray, pieces: list[_Piece], chunks: ContentChunks) -> list[_Piece]:
    def is_long(piece: _Piece) -> bool:
        return not piece.whole and piece.end - piece.start > chunks.mean_tokens

    stretches = [(piece.start, piece.end) for piece in pieces if is_long(piece)]
    if not stretches:
        return pieces
    seams = iter(find_seams(tokens, stretches, chunks))
    divided: list[_Piece] = []
    for piece in pieces:
        inner = next(seams) if is_long(piece) else ()
        if inner:
            edges = pairwise((piece.start, *inner, piece.end))
            divided += [_Piece(start, end, _CONTENT, True) for start, end in edges]
        else:
            divided.append(piece)
    return divided


def _find_separators(
    tokens: TokenArray, separators: Sequence[tuple[int, ...]], spans: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Places [start, end) of separators that touch no span; of several that overlap the leftmost, then the longest."""
    found = sorted(
        (start, -len(separator))
        for separator in separators
        for start in _outside_spans(_find_sequence(tokens, separator), len(separator), spans).tolist()
    )
    taken: list[tuple[int, int]] = []
    free_from = 0
    for start, negative_length in found:
        if start >= free_from:
            free_from = start - negative_length
            taken.append((start, free_from))
    return taken


def _outside_spans(starts: Positions, length: int, spans: Sequence[tuple[int, int]]) -> Positions:
    if not spans or not len(starts):
        return starts
    bounds = np.array(spans)
    # Spans are disjoint and ascending: nothing is touched if as many begin before the end as end before the start.
    begun = np.searchsorted(bounds[:, 0], starts + length, side="left")
    ended = np.searchsorted(bounds[:, 1], starts, side="right")
    outside: Positions = starts[begun == ended]
    return outside


def _find_message_starts(tokens: TokenArray, starts: Sequence[tuple[int, ...]]) -> list[int]:
    found = [_find_sequence(tokens, start).tolist() for start in starts]
    return found[0] if len(found) == 1 else sorted(set(chain.from_iterable(found)))


def _find_sequence(tokens: TokenArray, sequence: tuple[int, ...]) -> Positions:
    """Where the sequence begins, ascending; overlapping occurrences all count."""
    if len(sequence) > len(tokens):
        return np.empty(0, dtype=np.intp)
    found = np.flatnonzero(tokens[: len(tokens) - len(sequence) + 1] == sequence[0])
    for offset in range(1, len(sequence)):
        found = found[tokens[found + offset] == sequence[offset]]
    return found
