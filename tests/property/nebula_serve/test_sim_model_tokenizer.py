"""Laws of the shipped tokenizer that segments and answers rely on."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from nebula_serve.sim_model import SPECIAL_TOKENS
from nebula_serve.sim_model.model_folder import packaged_folder
from nebula_serve.sim_model.train import VOCABULARY_TOKENS

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(packaged_folder() / "tokenizer.json"))


@given(text=TEXTS)
def test_decoding_gives_back_the_text_in_normal_form(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == unicodedata.normalize("NFC", text)


@given(before=TEXTS, after=TEXTS, mark=st.sampled_from(SPECIAL_TOKENS))
def test_a_special_token_cuts_the_text_so_that_its_neighbours_keep_their_ids(
    tokenizer: Tokenizer, before: str, after: str, mark: str
) -> None:
    expected = [*tokenizer.encode(before).ids, SPECIAL_TOKENS.index(mark), *tokenizer.encode(after).ids]
    assert tokenizer.encode(before + mark + after).ids == expected


def test_every_id_below_the_vocabulary_has_a_token_of_its_own(tokenizer: Tokenizer) -> None:
    tokens = {tokenizer.id_to_token(token_id) for token_id in range(VOCABULARY_TOKENS)}
    assert None not in tokens
    assert len(tokens) == VOCABULARY_TOKENS
