import numpy as np
import pytest

from nebula_protocol.content_chunks import find_seams, reach_tokens
from nebula_protocol.cutting import ContentChunks
from nebula_protocol.tokens import as_token_array

CHUNKS = ContentChunks(min_tokens=8, mean_tokens=32, max_tokens=64)
TEXT = as_token_array(np.random.default_rng(7).integers(0, 50_000, 1_000))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    # 2 * 127 + 1 = 255 is the largest odd mean up to 256; a mean of twice the minimum needs the minimum as reach.
    [((64, 256, 1024), 127), ((64, 128, 1024), 64), ((8, 17, 64), 8)],
)
def test_seams_reach_half_of_the_mean_and_no_less_than_the_minimum(
    lengths: tuple[int, int, int], expected: int
) -> None:
    chunks = ContentChunks(min_tokens=lengths[0], mean_tokens=lengths[1], max_tokens=lengths[2])
    assert reach_tokens(chunks) == expected


def test_no_stretches_have_no_seams() -> None:
    assert find_seams(TEXT, [], CHUNKS) == []


def test_seams_are_positions_in_the_prompt() -> None:
    (whole,) = find_seams(TEXT, [(0, 1_000)], CHUNKS)
    prompt = np.concatenate([TEXT[:300], TEXT])
    (behind,) = find_seams(prompt, [(300, 1_300)], CHUNKS)
    assert len(whole) > 10
    assert behind == [seam + 300 for seam in whole]


def test_stretches_that_touch_are_divided_each_by_itself() -> None:
    first, second = find_seams(TEXT, [(0, 500), (500, 1_000)], CHUNKS)
    assert [first] == find_seams(TEXT[:500], [(0, 500)], CHUNKS)
    assert [[seam - 500 for seam in second]] == find_seams(TEXT[500:], [(0, 500)], CHUNKS)


def test_a_repeating_pattern_is_divided_at_the_same_place_of_its_period_up_to_the_maximum() -> None:
    pattern = np.tile(TEXT[:100], 10)
    (seams,) = find_seams(pattern, [(0, 1_000)], CHUNKS)
    lengths = np.diff([0, *seams, 1_000])
    assert lengths.min() >= 8
    assert lengths.max() <= 64
    inner = [seam for seam in seams if 100 <= seam < 800]
    assert {seam + 100 for seam in inner} == {seam for seam in seams if 200 <= seam < 900}
