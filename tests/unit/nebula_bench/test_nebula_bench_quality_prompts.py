"""Prompts of passages, and the other arrangement that lends them KV."""

import gzip
from pathlib import Path

import pytest
from support.quality_world import FRAME, encode, passages, prompts, settings

from nebula_bench.errors import BenchError, TraceError
from nebula_bench.quality.passages import read_passages
from nebula_bench.quality.prompts import make_prompts


def test_a_prompt_s_spans_are_its_passages_in_order() -> None:
    for one in prompts(settings()):
        assert tuple(one.prompt.tokens[start:end] for start, end in one.prompt.spans) == one.passages


def test_the_lender_has_the_same_passages_none_at_its_place() -> None:
    for one in prompts(settings(num_prompts=20)):
        lent = [one.lender.tokens[start:end] for start, end in one.lender.spans]
        assert sorted(lent) == sorted(one.passages)
        assert all(here != there for here, there in zip(lent, one.passages, strict=True))


def test_a_prompt_and_its_lender_ask_different_questions() -> None:
    for one in prompts(settings()):
        assert one.prompt.tokens[one.prompt.spans[-1][1] :] != one.lender.tokens[one.lender.spans[-1][1] :]


def test_passages_stand_between_what_the_chat_template_puts_around_them() -> None:
    before, after = tuple(encode(FRAME.before)), tuple(encode(FRAME.after))
    for one in prompts(settings()):
        assert one.prompt.tokens[: len(before)] == before
        assert one.prompt.tokens[-len(after) :] == after
        assert one.prompt.spans[0][0] == len(before)


def test_counts_and_lengths_stay_in_their_bounds_and_reach_them() -> None:
    made = prompts(settings(num_prompts=200, min_segment_tokens=30, max_segment_tokens=32))
    assert {len(one.passages) for one in made} == {2, 3, 4}
    assert {len(tokens) for one in made for tokens in one.passages} == {30, 31, 32}


def test_equal_seeds_make_equal_prompts_and_more_prompts_keep_the_first() -> None:
    few, many = prompts(settings(num_prompts=4)), prompts(settings(num_prompts=8))
    assert [one for one in many if one.number < 2] == list(few)


def test_seeds_draw_different_prompts() -> None:
    first, second = (one for one in prompts(settings(num_prompts=2)))
    assert (first.seed, second.seed) == (1, 2)
    assert first.passages != second.passages


def test_too_few_passages_are_an_error() -> None:
    with pytest.raises(BenchError, match="only 3 passages"):
        make_prompts(settings(), passages(3), FRAME, encode)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"max_passages": 2, "min_passages": 3}, "max_passages"),
        ({"min_segment_tokens": 64, "max_segment_tokens": 32}, "max_segment_tokens"),
        ({"num_prompts": 5}, "shared equally"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        settings(**changes)


def write_lines(path: Path, *lines: str) -> Path:
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_passages_of_enough_tokens_are_read_with_the_words_that_name_them(tmp_path: Path) -> None:
    long = "[Document]\\na b c d e f g h i j k l"
    path = write_lines(tmp_path / "p.gz", f'{{"id": "1", "text": "{long}"}}', '{"id": "2", "text": "short"}')
    (passage,) = read_passages(path, encode, min_tokens=10)
    assert passage.id == "1"
    assert passage.quote == "a b c d e f g h i j"
    assert len(passage.tokens) == len("[Document]\na b c d e f g h i j k l")


@pytest.mark.parametrize("line", ["{}", "no json"])
def test_a_line_that_is_no_passage_is_named(tmp_path: Path, line: str) -> None:
    path = write_lines(tmp_path / "p.gz", '{"id": "1", "text": "a"}', line)
    with pytest.raises(TraceError, match="line 2"):
        read_passages(path, encode, min_tokens=1)


def test_a_file_that_is_no_gzip_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "p.gz").write_text("plain")
    with pytest.raises(TraceError, match=r"p\.gz"):
        read_passages(tmp_path / "p.gz", encode, min_tokens=1)
