import numpy as np
import pytest

from nebula_protocol.cutter import cut_prompt
from nebula_protocol.cutting import ContentChunks, CutterConfig
from nebula_protocol.errors import SpanError
from nebula_protocol.hashing import hash_blocks, hash_segment
from nebula_protocol.layout import Mark, PromptLayout
from nebula_protocol.tokens import TokenArray, as_token_array

SEPARATOR, START = 1, 2
CONFIG = CutterConfig(separators=((SEPARATOR,),), message_starts=((START,),), min_segment_tokens=4)


def words(seed: int, num_tokens: int) -> list[int]:
    token_ids: list[int] = np.random.default_rng(seed).integers(100, 50_000, num_tokens).tolist()
    return token_ids


def cut(
    token_ids: list[int], config: CutterConfig = CONFIG, spans: tuple[tuple[int, int], ...] = ()
) -> list[tuple[int, int, Mark]]:
    layout = cut_prompt(as_token_array(token_ids), config, block_size_tokens=16, spans=spans)
    return [(segment.start, segment.end, segment.mark) for segment in layout.segments]


def test_an_empty_prompt_has_no_blocks_and_no_segments() -> None:
    layout = cut_prompt(as_token_array([]), CONFIG, block_size_tokens=16)
    assert (layout.num_tokens, len(layout.block_hashes), layout.segments) == (0, 0, ())


def test_separators_stay_outside_the_segments_they_delimit() -> None:
    prompt = [*words(0, 10), SEPARATOR, *words(1, 20), SEPARATOR, *words(2, 6)]
    # 10 tokens, a separator at 10, 20 tokens from 11 to 31, a separator at 31, the rest from 32 to 38.
    assert cut(prompt) == [(0, 10, Mark.SEPARATOR), (11, 31, Mark.SEPARATOR), (32, 38, Mark.SEPARATOR)]


def test_a_separator_of_several_tokens_is_found_as_a_whole_only() -> None:
    config = CutterConfig(separators=((1, 7, 1),), min_segment_tokens=1)
    assert cut([5, 1, 7, 5, 1, 7, 1, 5], config) == [(0, 4, Mark.SEPARATOR), (7, 8, Mark.SEPARATOR)]


def test_of_overlapping_separators_the_leftmost_and_then_the_longest_counts() -> None:
    config = CutterConfig(separators=((7,), (7, 8), (8, 9)), min_segment_tokens=1)
    # (7, 8) at 1 is longer than (7,) there and begins before (8, 9) at 2.
    assert cut([5, 7, 8, 9, 5], config) == [(0, 1, Mark.SEPARATOR), (3, 5, Mark.SEPARATOR)]


def test_a_message_begins_with_its_marker_and_ends_at_the_next_one() -> None:
    prompt = [START, *words(0, 9), START, *words(1, 5), START, 50]
    # The last message has 2 tokens, fewer than 4.
    assert cut(prompt) == [(0, 10, Mark.MESSAGE), (10, 16, Mark.MESSAGE)]


def test_text_before_the_first_message_is_a_segment_too() -> None:
    assert cut([*words(0, 8), START, *words(1, 5)]) == [(0, 8, Mark.MESSAGE), (8, 14, Mark.MESSAGE)]


def test_a_separator_inside_a_message_divides_it_and_a_message_start_divides_what_separators_left() -> None:
    prompt = [START, *words(0, 7), SEPARATOR, *words(1, 7), START, *words(2, 7)]
    assert cut(prompt) == [(0, 8, Mark.SEPARATOR), (9, 16, Mark.SEPARATOR), (16, 24, Mark.MESSAGE)]


def test_spans_come_before_all_other_marks() -> None:
    prompt = [*words(0, 10), SEPARATOR, *words(1, 9), START, *words(2, 19)]
    # The span holds the separator at 10 and the message start at 20; 5 tokens are left before it, 15 behind.
    assert cut(prompt, spans=((5, 25),)) == [(0, 5, Mark.CONTENT), (5, 25, Mark.SPAN), (25, 40, Mark.CONTENT)]


def test_a_separator_that_reaches_into_a_span_is_text() -> None:
    config = CutterConfig(separators=((7, 8), (8, 9)), min_segment_tokens=1)
    # (7, 8) would begin inside the span, so (8, 9) is one.
    assert cut([5, 7, 8, 9, 5], config, spans=((0, 2),)) == [(0, 2, Mark.SPAN), (4, 5, Mark.SEPARATOR)]


def test_spans_may_touch_and_come_in_any_order() -> None:
    assert cut(words(0, 20), spans=((10, 20), (0, 10))) == [(0, 10, Mark.SPAN), (10, 20, Mark.SPAN)]


def test_short_pieces_get_no_entry_not_even_spans() -> None:
    assert cut(words(0, 20), spans=((3, 6), (6, 10))) == [(6, 10, Mark.SPAN), (10, 20, Mark.CONTENT)]


@pytest.mark.parametrize(
    ("spans", "reason"),
    [
        (((5, 5),), "empty"),
        (((7, 5),), "empty"),
        (((-1, 5),), "outside the prompt of 20 tokens"),
        (((10, 21),), "outside the prompt of 20 tokens"),
        (((10, 10**30),), "outside the prompt"),
        (((5, 10), (0, 6)), "overlaps"),
        (((0, 5), (0, 5)), "overlaps"),
    ],
)
def test_bad_spans_are_refused_with_a_reason(spans: tuple[tuple[int, int], ...], reason: str) -> None:
    with pytest.raises(SpanError, match=reason):
        cut(words(0, 20), spans=spans)


def test_bad_spans_are_refused_without_reuse_too() -> None:
    with pytest.raises(SpanError):
        cut_prompt(as_token_array([1, 2]), CONFIG, block_size_tokens=16, spans=((0, 3),), pic=False)


def test_without_reuse_there_are_blocks_only() -> None:
    layout = cut_prompt(as_token_array(words(0, 40)), CONFIG, block_size_tokens=16, pic=False)
    assert layout.segments == ()
    assert len(layout.block_hashes) == 2


def test_block_hashes_are_computed_unless_given() -> None:
    tokens = as_token_array(words(0, 40))
    assert cut_prompt(tokens, CONFIG, block_size_tokens=16).block_hashes.tolist() == hash_blocks(tokens, 16).tolist()
    given = np.array([7, 8], dtype=np.uint64)
    assert cut_prompt(tokens, CONFIG, block_size_tokens=16, block_hashes=given).block_hashes is given


def test_equal_text_has_one_key_and_each_place_a_segment() -> None:
    passage = words(1, 12)
    tokens = as_token_array([SEPARATOR, *passage, SEPARATOR, *words(2, 9), SEPARATOR, *passage, SEPARATOR])
    segments = cut_prompt(tokens, CONFIG, block_size_tokens=16).segments
    assert len(segments) == 3
    assert segments[0].segment_hash == segments[2].segment_hash == hash_segment(as_token_array(passage))


def long_layout(token_ids: list[int], chunks: ContentChunks | None = CONFIG.content_chunks) -> PromptLayout:
    config = CutterConfig(separators=((SEPARATOR,),), message_starts=((START,),), content_chunks=chunks)
    return cut_prompt(as_token_array(token_ids), config, block_size_tokens=16)


def test_a_long_message_is_divided_by_content() -> None:
    layout = long_layout([START, *words(0, 4000)])
    assert {segment.mark for segment in layout.segments} == {Mark.CONTENT}
    # 4,001 tokens in chunks of 64 to 1,024 tokens: at least 4. None is too short for an entry, so all is covered.
    assert len(layout.segments) >= 4
    assert layout.segment_tokens == layout.num_tokens == 4001


def test_a_message_up_to_the_mean_chunk_length_stays_whole() -> None:
    segments = long_layout([START, *words(0, 255)]).segments
    assert [(s.start, s.end, s.mark) for s in segments] == [(0, 256, Mark.MESSAGE)]


def test_a_long_passage_between_two_separators_stays_whole() -> None:
    segments = long_layout([SEPARATOR, *words(0, 4000), SEPARATOR]).segments
    assert [(s.start, s.end, s.mark) for s in segments] == [(1, 4001, Mark.SEPARATOR)]


def test_a_long_rest_behind_the_last_separator_is_divided_by_content() -> None:
    segments = long_layout([SEPARATOR, *words(0, 4000)]).segments
    assert len(segments) >= 4
    assert {segment.mark for segment in segments} == {Mark.CONTENT}


def test_without_content_chunks_a_stretch_without_marks_is_one_segment() -> None:
    segments = long_layout(words(0, 4000), chunks=None).segments
    assert [(s.start, s.end, s.mark) for s in segments] == [(0, 4000, Mark.CONTENT)]


def test_the_last_segment_may_end_with_the_prompt() -> None:
    tokens: TokenArray = as_token_array([SEPARATOR, *words(0, 10)])
    assert cut_prompt(tokens, CONFIG, block_size_tokens=16).segments[-1].end == len(tokens)
