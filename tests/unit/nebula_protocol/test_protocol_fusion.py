"""A fusion method as a value and as text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebula_protocol.errors import FusionError
from nebula_protocol.fusion import (
    FULL_FUSION,
    MAX_LEADING_TOKENS,
    NO_FUSION,
    Fusion,
    cacheblend,
    legolink,
    parse_fusion,
)

FUSIONS = st.one_of(
    st.just(NO_FUSION),
    st.just(FULL_FUSION),
    st.integers(0, MAX_LEADING_TOKENS).map(legolink),
    st.floats(1e-4, 1.0).map(cacheblend),
)


@given(fusion=FUSIONS)
def test_what_is_written_is_read_back(fusion: Fusion) -> None:
    assert parse_fusion(str(fusion)) == fusion


def test_a_method_without_its_amount_has_the_default_one() -> None:
    assert parse_fusion("legolink") == legolink(16)
    assert parse_fusion("cacheblend") == cacheblend(0.15)


@pytest.mark.parametrize(
    "text",
    ["", ":", "legolink:", "legolink:1.5", "legolink:-1", "legolink:16 ", "legolink:1_6", "LegoLink:16", "cacheblend:.",
     "cacheblend:1.2.3", "cacheblend:1e-1", "cacheblend:nan", "cacheblend:15%", "none:0", "full:1", "epic:16", "16"],
)  # fmt: skip
def test_other_texts_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(FusionError, match="the forms are legolink:16"):
        parse_fusion(text)


@pytest.mark.parametrize("text", ["cacheblend:0", "cacheblend:0.00001", "cacheblend:1.01", "legolink:65537"])
def test_amounts_out_of_bounds_are_refused_with_the_bounds(text: str) -> None:
    with pytest.raises(FusionError, match=r"takes (a share over 0 and up to 1|0 to 65536 leading tokens), not"):
        parse_fusion(text)


@pytest.mark.parametrize("ratio", [math.nan, math.inf, -0.1])
def test_a_share_that_is_none_is_refused(ratio: float) -> None:
    with pytest.raises(FusionError, match="a share over 0"):
        cacheblend(ratio)


def test_a_flood_of_text_is_not_echoed() -> None:
    with pytest.raises(FusionError) as raised:
        parse_fusion("legolink:" + "9" * 1_000_000)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("fusion", "num_tokens", "recomputed"),
    [
        (legolink(16), 100, 16),
        (legolink(16), 10, 10),
        (cacheblend(0.15), 100, 15),
        # A share is rounded up: 0.15 * 101 = 15.15. But 0.15 * 20 is 3, though not in binary.
        (cacheblend(0.15), 101, 16),
        (cacheblend(0.15), 20, 3),
        (NO_FUSION, 100, 0),
        (FULL_FUSION, 100, 100),
    ],
    ids=str,
)
def test_each_method_computes_its_share_again(fusion: Fusion, num_tokens: int, recomputed: int) -> None:
    assert fusion.recomputed_tokens(num_tokens) == recomputed


@given(fusion=FUSIONS, num_tokens=st.integers(0, 100_000))
def test_never_more_than_all_is_computed_again(fusion: Fusion, num_tokens: int) -> None:
    assert 0 <= fusion.recomputed_tokens(num_tokens) <= num_tokens


def test_only_cacheblend_chooses_by_a_probe() -> None:
    assert cacheblend(0.15).needs_probe
    assert not any(fusion.needs_probe for fusion in (legolink(16), NO_FUSION, FULL_FUSION))
