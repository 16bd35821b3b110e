from collections.abc import Callable

import pytest
from tokenizers import Tokenizer

from nebula_protocol.errors import MarkError
from nebula_protocol.mark_core import find_core
from nebula_serve.sim_model.model_folder import packaged_folder

Encode = Callable[[str], list[int]]


@pytest.fixture(scope="module")
def encode() -> Encode:
    tokenizer = Tokenizer.from_file(str(packaged_folder() / "tokenizer.json"))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def test_a_special_token_is_its_own_core(encode: Encode) -> None:
    assert find_core("<|im_start|>", encode) == tuple(encode("<|im_start|>"))


@pytest.mark.parametrize("mark", ["\n---\n", "\n\n---\n\n", " # # ", "\n###\n", "\n<passage>\n", "[SEP]", " ### "])
def test_a_core_is_found_behind_a_full_stop_and_before_a_word(encode: Encode, mark: str) -> None:
    core = find_core(mark, encode)
    for before, behind in [("The end.", "Then"), ("(see above)", "2024"), ("in 1999", '"so'), ("a line\n", "(x)")]:
        token_ids = encode(before + mark + behind)
        assert any(tuple(token_ids[at : at + len(core)]) == core for at in range(len(token_ids)))


def test_the_whole_mark_would_not_be_found_where_its_edges_merge(encode: Encode) -> None:
    whole, inside = encode("\n---\n"), encode("The end.\n---\nThen")
    assert not any(inside[at : at + len(whole)] == whole for at in range(len(inside)))
    assert find_core("\n---\n", encode) == tuple(whole[1:])


def test_a_mark_that_melts_into_its_neighbours_is_refused_with_advice(encode: Encode) -> None:
    with pytest.raises(MarkError, match=r"merges the mark .* take a special token"):
        find_core("\n\n", encode)


def test_an_empty_mark_is_refused(encode: Encode) -> None:
    with pytest.raises(MarkError, match="no token at all"):
        find_core("", encode)
