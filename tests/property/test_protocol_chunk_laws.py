"""Laws of content-defined seams, against a naive model and under shifts and edits."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from nebula_protocol.content_chunks import find_seams, reach_tokens
from nebula_protocol.cutting import SEAM_WINDOW_TOKENS, ContentChunks
from nebula_protocol.tokens import TokenArray, as_token_array

HALF = SEAM_WINDOW_TOKENS // 2
ALPHABETS = st.sampled_from([1, 2, 3, 50, 150_000])
"""Number of different tokens: one and two bring ties and chunks without natural seams."""


@st.composite
def chunk_lengths(draw: st.DrawFn) -> ContentChunks:
    min_tokens = draw(st.integers(SEAM_WINDOW_TOKENS, 24))
    mean_tokens = draw(st.integers(2 * min_tokens, 4 * min_tokens))
    max_tokens = draw(st.integers(mean_tokens, 4 * mean_tokens))
    return ContentChunks(min_tokens=min_tokens, mean_tokens=mean_tokens, max_tokens=max_tokens)


@st.composite
def texts(draw: st.DrawFn, min_tokens: int = 60, max_tokens: int = 900) -> list[int]:
    seed, alphabet = draw(st.integers(0, 2**32)), draw(ALPHABETS)
    length = draw(st.integers(min_tokens, max_tokens))
    period = draw(st.sampled_from([length, length, 1, 7, 40]))
    once = np.random.default_rng(seed).integers(0, alphabet, min(period, length))
    return np.resize(once, length).tolist()


def seams_of(text: list[int], chunks: ContentChunks) -> list[int]:
    return find_seams(as_token_array(text), [(0, len(text))], chunks)[0]


def without_maximum(chunks: ContentChunks) -> ContentChunks:
    return ContentChunks(min_tokens=chunks.min_tokens, mean_tokens=chunks.mean_tokens, max_tokens=10**9)


def place_hash(window: list[int]) -> int:
    polynomial = 0
    for token in window:
        polynomial = (polynomial * 0x9E3779B1 + token) % 2**32
    return (polynomial ^ polynomial >> 15) * 0x85EBCA6B % 2**32


def naive_seams(text: list[int], chunks: ContentChunks) -> list[int]:
    """Place by place, as the module's description has it."""
    reach = reach_tokens(chunks)
    hashes = {at: place_hash(text[at - HALF : at + HALF]) for at in range(HALF, len(text) - HALF + 1)}
    natural = [
        at
        for at in range(chunks.min_tokens, len(text) - chunks.min_tokens + 1)
        if all(hashes[at] < hashes.get(other, 2**32) for other in range(at - reach, at))
        and all(hashes[at] <= hashes.get(other, 2**32) for other in range(at + 1, at + reach + 1))
    ]
    seams: list[int] = []
    start = 0
    for end in [*natural, len(text)]:
        while end - start > chunks.max_tokens:
            places = range(start + chunks.min_tokens, min(start + chunks.max_tokens, end - chunks.min_tokens) + 1)
            start = min(places, key=lambda at: (hashes[at], -at))
            seams.append(start)
        seams.append(end)
        start = end
    return seams[:-1]


@given(text=texts(max_tokens=300), chunks=chunk_lengths())
def test_seams_are_those_of_the_naive_model(text: list[int], chunks: ContentChunks) -> None:
    assume(len(text) > chunks.mean_tokens)
    assert seams_of(text, chunks) == naive_seams(text, chunks)


@given(text=texts(), chunks=chunk_lengths())
def test_chunks_are_neither_too_short_nor_too_long(text: list[int], chunks: ContentChunks) -> None:
    assume(len(text) > chunks.mean_tokens)
    lengths = np.diff([0, *seams_of(text, chunks), len(text)])
    assert lengths.min() >= chunks.min_tokens
    assert lengths.max() <= chunks.max_tokens


@given(parts=st.lists(texts(), min_size=1, max_size=5), gaps=st.lists(texts(1, 30), min_size=5, max_size=5))
def test_stretches_do_not_see_each_other_nor_what_lies_between_them(
    parts: list[list[int]], gaps: list[list[int]]
) -> None:
    chunks = ContentChunks(min_tokens=8, mean_tokens=32, max_tokens=128)
    prompt: list[int] = []
    stretches = []
    for part, gap in zip(parts, gaps, strict=False):
        start = len(prompt)
        prompt += [*part, *gap]
        stretches.append((start, start + len(part)))
    found = find_seams(as_token_array(prompt), stretches, chunks)
    relative = [[seam - start for seam in seams] for (start, _), seams in zip(stretches, found, strict=True)]
    assert relative == [seams_of(part, chunks) for part in parts]


@given(before=texts(0, 300), text=texts(), behind=texts(0, 300), chunks=chunk_lengths())
def test_neighbours_move_only_seams_within_reach_of_them(
    before: list[int], text: list[int], behind: list[int], chunks: ContentChunks
) -> None:
    chunks = without_maximum(chunks)
    assume(len(text) > chunks.mean_tokens)
    margin = reach_tokens(chunks) + HALF
    inner = range(margin, len(text) - margin + 1)
    alone = {seam for seam in seams_of(text, chunks) if seam in inner}
    shifted = {seam - len(before) for seam in seams_of([*before, *text, *behind], chunks)}
    assert {seam for seam in shifted if seam in inner} == alone


@given(text=texts(), edit=texts(0, 60), chunks=chunk_lengths(), data=st.data())
def test_an_edit_moves_only_seams_within_reach_of_it(
    text: list[int], edit: list[int], chunks: ContentChunks, data: st.DataObject
) -> None:
    chunks = without_maximum(chunks)
    first = data.draw(st.integers(0, len(text)))
    last = data.draw(st.integers(first, min(first + 60, len(text))))
    edited = [*text[:first], *edit, *text[last:]]
    assume(min(len(text), len(edited)) > chunks.mean_tokens)
    margin = reach_tokens(chunks) + HALF
    moved = len(edited) - len(text)
    seams, edited_seams = seams_of(text, chunks), seams_of(edited, chunks)
    assert [seam for seam in edited_seams if seam <= first - margin] == [s for s in seams if s <= first - margin]
    behind = [seam - moved for seam in edited_seams if seam - moved >= last + margin]
    assert behind == [seam for seam in seams if seam >= last + margin]


@given(text=texts(400, 900), before=texts(0, 300), chunks=chunk_lengths())
def test_with_a_maximum_too_all_seams_agree_behind_the_first_common_natural_one(
    text: list[int], before: list[int], chunks: ContentChunks
) -> None:
    margin = reach_tokens(chunks) + HALF
    natural = [seam for seam in seams_of(text, without_maximum(chunks)) if seam >= margin]
    assume(natural)
    alone = [seam for seam in seams_of(text, chunks) if seam >= natural[0]]
    shifted = [seam - len(before) for seam in seams_of([*before, *text], chunks)]
    assert [seam for seam in shifted if seam >= natural[0]] == alone


@given(seed=st.integers(0, 2**32))
def test_chunks_of_varied_text_have_the_mean_length(seed: int) -> None:
    chunks = ContentChunks(min_tokens=64, mean_tokens=256, max_tokens=1024)
    text = np.random.default_rng(seed).integers(0, 150_000, 32_768)
    mean_tokens = len(text) / (len(seams_of(text.tolist(), chunks)) + 1)
    # Local minima within 127 places on both sides are 255 apart on average. The gaps spread by about half of that, so
    # the mean of 128 has a standard error of 11; five of those.
    assert 255 - 55 < mean_tokens < 255 + 55


def test_one_token_over_and_over_falls_into_equal_chunks_of_the_maximum() -> None:
    chunks = ContentChunks(min_tokens=64, mean_tokens=256, max_tokens=1024)
    tokens: TokenArray = as_token_array([5] * 10_000)
    # All places hash alike. Chunks of 1,024 up to 9 * 1,024 = 9,216; the rest of 784 tokens is no longer than one.
    assert find_seams(tokens, [(0, 10_000)], chunks) == [[1024 * i for i in range(1, 10)]]
