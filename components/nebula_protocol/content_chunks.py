"""Content-defined seams in long stretches of tokens: the same text is divided at the same places wherever it stands.

A place between two tokens has a hash over the tokens around it, and is a seam where that hash is the smallest within
`reach` places on both sides (local-minimum chunking, Bjorner, Blass and Gurevich 2010, "Content-dependent chunking for
differential compression, the local maximum approach"). Unlike a rolling hash with a minimum length, which depends on
where the chunk before began, whether a place is a seam depends on nothing further away than `reach` and half a window.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from nebula_protocol.cutting import SEAM_WINDOW_TOKENS, ContentChunks
from nebula_protocol.tokens import TokenArray

Positions = npt.NDArray[np.intp]
_Hashes = npt.NDArray[np.uint32]

_HALF = SEAM_WINDOW_TOKENS // 2
_FACTOR = 0x9E3779B1
_MIX = np.uint32(0x85EBCA6B)
_NEVER = np.uint32(0xFFFFFFFF)


def reach_tokens(chunks: ContentChunks) -> int:
    """How far from a seam its hash is the smallest. Seams are further apart than this, twice this plus 1 on average."""
    return max(chunks.min_tokens, (chunks.mean_tokens - 1) // 2)


def find_seams(tokens: TokenArray, stretches: Sequence[tuple[int, int]], chunks: ContentChunks) -> list[list[int]]:
    """For each stretch [start, end) the ascending positions inside it before which a new chunk begins.

    Stretches are disjoint and ascending, each at least twice `chunks.min_tokens` long. Nothing outside a stretch
    influences its seams. One pass of vector operations over the prompt, whatever the number of stretches.
    """
    if not stretches:
        return []
    begin, end = stretches[0][0], stretches[-1][1]
    hashes = _place_hashes(tokens[begin:end])
    # Stretches and seams are counted from `begin` inside, as the hashes are.
    moved = np.array(stretches, dtype=np.intp) - begin
    natural = _natural_seams(hashes, moved, chunks)
    lasts = np.searchsorted(natural, moved[:, 1]).tolist()
    flat = natural.tolist()
    seams: list[list[int]] = []
    for (start, end), first, last in zip(moved.tolist(), [0, *lasts[:-1]], lasts, strict=True):
        inner = flat[first:last]
        if end - start > chunks.max_tokens:
            inner = _divide_long_chunks(hashes, start, end, inner, chunks)
        seams.append([begin + seam for seam in inner])
    return seams


def _place_hashes(tokens: TokenArray) -> _Hashes:
    """Hash of the window around each place, shape [tokens - window + 1]; element i is the place before token i + half.

    A polynomial over the window modulo 2**32, by doubling (windows of 2, 4, 8), its bits then mixed once.
    """
    hashes: _Hashes = tokens
    width = 1
    while width < SEAM_WINDOW_TOKENS:
        shifted = hashes[:-width] * np.uint32(pow(_FACTOR, width, 1 << 32))
        shifted += hashes[width:]
        hashes = shifted
        width *= 2
    hashes ^= hashes >> np.uint32(15)
    hashes *= _MIX
    return hashes


def _natural_seams(hashes: _Hashes, stretches: Positions, chunks: ContentChunks) -> Positions:
    """Ascending seams of all stretches, shape [seams]; `stretches` has shape [stretches, 2]."""
    reach = reach_tokens(chunks)
    starts, ends = stretches[:, 0], stretches[:, 1]
    counts = ends - starts - (SEAM_WINDOW_TOKENS - 1)
    # All stretches in one row, with room between them so that no place is compared with another stretch's.
    offsets = np.cumsum(counts + reach) - counts
    row = np.full(int(offsets[-1] + counts[-1]) + reach, _NEVER, dtype=np.uint32)
    for at, start, count in zip(offsets.tolist(), starts.tolist(), counts.tolist(), strict=True):
        row[at : at + count] = hashes[start : start + count]
    minima = _local_minima(row, reach)
    of_stretch = np.searchsorted(offsets, minima, side="right") - 1
    seams = minima + (starts + _HALF - offsets)[of_stretch]
    is_inside = seams >= (starts + chunks.min_tokens)[of_stretch]
    is_inside &= seams <= (ends - chunks.min_tokens)[of_stretch]
    inside: Positions = seams[is_inside]
    return inside


def _local_minima(row: _Hashes, reach: int) -> Positions:
    """Where a value is the smallest within `reach` on both sides, of equal ones the leftmost; both ends excluded."""
    smallest = row
    width = 1
    while 2 * width <= reach:
        smallest = np.minimum(smallest[:-width], smallest[width:])
        width *= 2
    # Two windows of a power of two cover one of `reach`, overlapping.
    smallest = np.minimum(smallest[: len(row) - reach + 1], smallest[reach - width :])
    middle = row[reach : len(row) - reach]
    is_seam = middle < smallest[: len(middle)]
    is_seam &= middle <= smallest[reach + 1 :]
    return is_seam.nonzero()[0] + reach


def _divide_long_chunks(hashes: _Hashes, start: int, end: int, seams: list[int], chunks: ContentChunks) -> list[int]:
    """Adds seams where natural ones are too far apart, which repetitive text brings about; chosen by content too."""
    divided: list[int] = []
    chunk_start = start
    for chunk_end in [*seams, end]:
        while chunk_end - chunk_start > chunks.max_tokens:
            first = chunk_start + chunks.min_tokens
            last = min(chunk_start + chunks.max_tokens, chunk_end - chunks.min_tokens)
            # Of equal hashes the last one: text that repeats one token falls into chunks of the maximum.
            backwards = hashes[first - _HALF : last - _HALF + 1][::-1]
            chunk_start = last - int(np.argmin(backwards))
            divided.append(chunk_start)
        divided.append(chunk_end)
        chunk_start = chunk_end
    return divided[:-1]
