"""Pseudo tokens: the same content for the same id, everywhere and for ever."""

import numpy as np
import pytest

from nebula_bench.pseudo_tokens import PseudoVocabulary


def test_an_id_names_the_same_tokens_on_every_machine() -> None:
    # Fixed once: a change would make results of before and after incomparable.
    assert PseudoVocabulary().tokens("rp-p7398", 6).tolist() == [3450, 7283, 3461, 2245, 2842, 4770]


def test_other_ids_name_other_tokens_and_a_longer_content_begins_with_the_shorter() -> None:
    vocabulary = PseudoVocabulary()
    assert not np.array_equal(vocabulary.tokens("a", 50), vocabulary.tokens("b", 50))
    assert np.array_equal(vocabulary.tokens("a", 50)[:20], vocabulary.tokens("a", 20))


def test_ids_stay_in_the_range_and_reach_both_ends() -> None:
    tokens = PseudoVocabulary(10, 14).tokens("a", 1_000)
    assert set(tokens.tolist()) == {10, 11, 12, 13}


@pytest.mark.parametrize(("first", "end"), [(5, 5), (6, 5), (-1, 5)])
def test_an_empty_range_is_refused(first: int, end: int) -> None:
    with pytest.raises(ValueError, match="no token id"):
        PseudoVocabulary(first, end)
