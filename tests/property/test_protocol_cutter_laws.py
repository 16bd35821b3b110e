"""Laws of cutting, against a naive model that walks the prompt token by token."""

from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebula_protocol.cutter import cut_prompt
from nebula_protocol.cutting import ContentChunks, CutterConfig
from nebula_protocol.errors import SpanError
from nebula_protocol.hashing import hash_blocks, hash_segment
from nebula_protocol.layout import Mark, Segment
from nebula_protocol.tokens import as_token_array

Span = tuple[int, int]

SEPARATORS = ((1,), (2, 3), (1, 1), (3, 1, 2))
MESSAGE_STARTS = ((4,), (5, 1), (5, 5))
CHUNKS = ContentChunks(min_tokens=8, mean_tokens=24, max_tokens=60)


@dataclass(frozen=True, slots=True)
class Prompt:
    token_ids: list[int]
    spans: tuple[Span, ...]


@st.composite
def prompts(draw: st.DrawFn, max_tokens: int = 400) -> Prompt:
    """Prompts in which marks are frequent, touch and overlap, with disjoint spans in any order."""
    seed = draw(st.integers(0, 2**32))
    alphabet = draw(st.sampled_from([3, 7, 60, 1000]))
    length = draw(st.integers(0, max_tokens))
    token_ids = np.random.default_rng(seed).integers(0, alphabet, length).tolist()
    bounds = sorted(draw(st.sets(st.integers(0, length), max_size=8)))
    spans = list(zip(bounds[::2], bounds[1::2], strict=False))
    touching = list(pairwise(bounds))
    return Prompt(token_ids, tuple(draw(st.permutations(draw(st.sampled_from([spans, touching, []]))))))


@st.composite
def configs(draw: st.DrawFn, chunks: ContentChunks | None = CHUNKS) -> CutterConfig:
    return CutterConfig(
        separators=tuple(draw(st.lists(st.sampled_from(SEPARATORS), unique=True))),
        message_starts=tuple(draw(st.lists(st.sampled_from(MESSAGE_STARTS), unique=True))),
        content_chunks=chunks,
        min_segment_tokens=draw(st.integers(1, 20)),
    )


def cut(prompt: Prompt, config: CutterConfig) -> tuple[Segment, ...]:
    return cut_prompt(as_token_array(prompt.token_ids), config, block_size_tokens=16, spans=prompt.spans).segments


def naive_marks(prompt: Prompt, config: CutterConfig) -> list[tuple[int, int, Mark]]:
    """Pieces [start, end) by spans, separators and message starts, the short ones included."""
    token_ids, num_tokens = prompt.token_ids, len(prompt.token_ids)

    def begins(at: int, sequence: tuple[int, ...]) -> bool:
        return tuple(token_ids[at : at + len(sequence)]) == sequence

    # Each token's owner: a span, a separator, or the free text between two of them.
    owners: list[tuple[Mark, int]] = [(Mark.CONTENT, 0)] * num_tokens
    for start, end in prompt.spans:
        owners[start:end] = [(Mark.SPAN, start)] * (end - start)
    in_spans = [owner[0] is Mark.SPAN for owner in owners]
    for at in range(num_tokens):
        lengths = [len(s) for s in config.separators if begins(at, s) and not any(in_spans[at : at + len(s)])]
        if lengths and owners[at][0] is Mark.CONTENT:
            owners[at : at + max(lengths)] = [(Mark.SEPARATOR, at)] * max(lengths)

    def left_edge(at: int) -> Mark:
        if owners[at][0] is Mark.CONTENT and any(begins(at, s) for s in config.message_starts):
            return Mark.MESSAGE
        return owners[at - 1][0] if at else Mark.CONTENT

    starts = [at for at in range(num_tokens) if not at or owners[at] != owners[at - 1] or left_edge(at) is Mark.MESSAGE]
    pieces: list[tuple[int, int, Mark]] = []
    for start, end in pairwise([*starts, num_tokens]):
        right_edge = Mark.CONTENT
        if end < num_tokens:
            right_edge = left_edge(end) if owners[end][0] is Mark.CONTENT else owners[end][0]
        edges = {left_edge(start), right_edge}
        if owners[start][0] is Mark.SPAN:
            pieces.append((start, end, Mark.SPAN))
        elif owners[start][0] is Mark.CONTENT:
            marks = [mark for mark in (Mark.SEPARATOR, Mark.MESSAGE) if mark in edges]
            pieces.append((start, end, marks[0] if marks else Mark.CONTENT))
    return pieces


@given(prompt=prompts(), config=configs(chunks=None))
def test_without_chunks_segments_are_those_of_the_naive_model(prompt: Prompt, config: CutterConfig) -> None:
    expected = [piece for piece in naive_marks(prompt, config) if piece[1] - piece[0] >= config.min_segment_tokens]
    assert [(segment.start, segment.end, segment.mark) for segment in cut(prompt, config)] == expected


@given(prompt=prompts(), config=configs())
def test_segments_are_disjoint_ascending_inside_the_prompt_and_long_enough(
    prompt: Prompt, config: CutterConfig
) -> None:
    at = 0
    for segment in cut(prompt, config):
        assert segment.start >= at
        assert segment.num_tokens >= config.min_segment_tokens
        at = segment.end
    assert at <= len(prompt.token_ids)


@given(prompt=prompts(), config=configs())
def test_a_segments_key_is_the_hash_of_its_tokens(prompt: Prompt, config: CutterConfig) -> None:
    tokens = as_token_array(prompt.token_ids)
    for segment in cut(prompt, config):
        assert segment.segment_hash == hash_segment(tokens[segment.start : segment.end])


@given(prompt=prompts(), config=configs())
def test_every_span_is_a_segment_of_its_own_unless_too_short(prompt: Prompt, config: CutterConfig) -> None:
    found = [(s.start, s.end) for s in cut(prompt, config) if s.mark is Mark.SPAN]
    assert found == sorted(s for s in prompt.spans if s[1] - s[0] >= config.min_segment_tokens)


@given(prompt=prompts(), config=configs())
def test_content_divides_only_long_pieces_without_a_separator_on_both_sides(
    prompt: Prompt, config: CutterConfig
) -> None:
    undivided = cut(prompt, msgspec.structs.replace(config, content_chunks=None))
    divided = cut(prompt, config)
    for segment in undivided:
        inside = [part for part in divided if segment.start <= part.start and part.end <= segment.end]
        if len(inside) == 1 and inside[0].num_tokens == segment.num_tokens:
            assert inside == [segment]
            continue
        assert segment.num_tokens > CHUNKS.mean_tokens
        assert segment.mark is not Mark.SPAN
        assert {part.mark for part in inside} <= {Mark.CONTENT}
        assert all(CHUNKS.min_tokens <= part.num_tokens <= CHUNKS.max_tokens for part in inside)


@given(prompt=prompts(), config=configs())
def test_the_same_prompt_is_cut_alike_whatever_memory_it_lies_in(prompt: Prompt, config: CutterConfig) -> None:
    twice = np.repeat(as_token_array(prompt.token_ids), 2)
    strided = twice[::2]
    layout = cut_prompt(strided, config, block_size_tokens=16, spans=prompt.spans)
    assert layout.segments == cut(prompt, config)
    assert layout.block_hashes.tolist() == hash_blocks(as_token_array(prompt.token_ids), 16).tolist()


@given(before=prompts(), text=prompts(), behind=prompts(), config=configs())
def test_what_stands_between_two_separators_has_the_same_keys_behind_any_text(
    before: Prompt, text: Prompt, behind: Prompt, config: CutterConfig
) -> None:
    # A token that occurs nowhere else, so that no other separator overlaps it.
    separator = 9999
    config = msgspec.structs.replace(config, separators=((separator,),))
    alone = Prompt([separator, *text.token_ids, separator], ())
    inside = Prompt([*before.token_ids, *alone.token_ids, *behind.token_ids], ())
    offset = len(before.token_ids)
    end = offset + len(alone.token_ids)
    expected = [(s.start + offset, s.end + offset, s.segment_hash) for s in cut(alone, config)]
    found = [(s.start, s.end, s.segment_hash) for s in cut(inside, config) if offset <= s.start and s.end <= end]
    assert found == expected


@given(before=prompts(), text=prompts(), behind=prompts())
def test_a_message_has_the_same_keys_behind_any_message(before: Prompt, text: Prompt, behind: Prompt) -> None:
    start = 9999
    config = CutterConfig(message_starts=((start,),), content_chunks=CHUNKS, min_segment_tokens=8)
    message = [start, *text.token_ids]
    inside = Prompt([start, *before.token_ids, *message, start, *behind.token_ids], ())
    offset = len(before.token_ids) + 1
    expected = [(s.start + offset, s.segment_hash) for s in cut(Prompt(message, ()), config)]
    found = [(s.start, s.segment_hash) for s in cut(inside, config) if offset <= s.start < offset + len(message)]
    assert found == expected


@given(before=prompts(), seed=st.integers(0, 2**32))
def test_prepended_text_changes_only_the_first_chunks(before: Prompt, seed: int) -> None:
    text = np.random.default_rng(seed).integers(0, 50_000, 1_000).tolist()
    config = CutterConfig(content_chunks=CHUNKS, min_segment_tokens=8)
    alone = {segment.segment_hash for segment in cut(Prompt(text, ()), config)}
    shifted = {segment.segment_hash for segment in cut(Prompt([*before.token_ids, *text], ()), config)}
    # Seams move within 11 + 4 = 15 tokens of the join. Chunks are at least 8 long: two seams at most, three chunks;
    # a fourth where the natural seam before the fourth chunk moves a forced one.
    assert len(alone - shifted) <= 4


@given(prompt=prompts(), config=configs())
def test_without_reuse_there_are_no_segments_but_all_blocks(prompt: Prompt, config: CutterConfig) -> None:
    tokens = as_token_array(prompt.token_ids)
    layout = cut_prompt(tokens, config, block_size_tokens=16, spans=prompt.spans, pic=False)
    assert layout.segments == ()
    assert len(layout.block_hashes) == len(tokens) // 16


@given(prompt=prompts(), span=st.tuples(st.integers(-50, 500), st.integers(-50, 500)), pic=st.booleans())
def test_a_span_is_refused_exactly_if_it_is_empty_or_outside_or_overlaps(prompt: Prompt, span: Span, pic: bool) -> None:
    num_tokens = len(prompt.token_ids)
    free = set(range(num_tokens)) - {position for other in prompt.spans for position in range(*other)}
    is_good = span[0] < span[1] and set(range(*span)) <= free
    spans = (*prompt.spans, span)
    tokens = as_token_array(prompt.token_ids)
    if is_good:
        assert cut_prompt(tokens, CutterConfig(), block_size_tokens=16, spans=spans, pic=pic).num_tokens == num_tokens
    else:
        with pytest.raises(SpanError):
            cut_prompt(tokens, CutterConfig(), block_size_tokens=16, spans=spans, pic=pic)
