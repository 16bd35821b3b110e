import pytest
from pydantic import ValidationError

from nebula_protocol.cut_settings import CutSettings, make_cutter_config
from nebula_protocol.cutting import ContentChunks, CutterConfig
from nebula_protocol.errors import MarkError


def encode_characters(text: str) -> list[int]:
    """One token a character: nothing merges."""
    return [ord(character) for character in text]


def test_the_defaults_are_those_of_the_wire_record() -> None:
    config = make_cutter_config(CutSettings(message_starts=()), encode_characters)
    assert config == CutterConfig()


def test_marks_become_token_ids() -> None:
    settings = CutSettings(separators=("--", "#"), message_starts=("<>",), min_segment_tokens=5)
    config = make_cutter_config(settings, encode_characters)
    assert config.separators == ((45, 45), (35,))
    assert config.message_starts == ((60, 62),)
    assert config.min_segment_tokens == 5


def test_content_chunks_can_be_left_out() -> None:
    assert make_cutter_config(CutSettings(content_chunks=False), encode_characters).content_chunks is None


def test_chunk_lengths_are_passed_on() -> None:
    settings = CutSettings(chunk_min_tokens=10, chunk_mean_tokens=20, chunk_max_tokens=30)
    expected = ContentChunks(min_tokens=10, mean_tokens=20, max_tokens=30)
    assert make_cutter_config(settings, encode_characters).content_chunks == expected


@pytest.mark.parametrize("field", ["separators", "message_starts"])
def test_a_mark_that_the_tokenizer_drops_is_refused(field: str) -> None:
    settings = CutSettings.model_validate({field: ("#", "\u200b")})
    with pytest.raises(MarkError, match="no token at all"):
        make_cutter_config(settings, lambda text: encode_characters(text.replace("\u200b", "")))


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [
        ((64, 127, 1024), "at least twice"),
        ((64, 256, 255), "must not be below"),
        ((7, 256, 1024), "greater than or equal to 8"),
    ],
)
def test_chunk_lengths_that_contradict_each_other_are_refused(lengths: tuple[int, int, int], reason: str) -> None:
    keys = ("chunk_min_tokens", "chunk_mean_tokens", "chunk_max_tokens")
    with pytest.raises(ValidationError, match=reason):
        CutSettings.model_validate(dict(zip(keys, lengths, strict=True)))


def test_the_tightest_chunk_lengths_are_allowed() -> None:
    CutSettings(chunk_min_tokens=64, chunk_mean_tokens=128, chunk_max_tokens=128)


@pytest.mark.parametrize(
    "wrong", [{"min_tokens": 7}, {"min_tokens": 129}, {"max_tokens": 255}], ids=lambda wrong: str(wrong)
)
def test_the_wire_record_refuses_the_same(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="content chunks"):
        ContentChunks(**wrong)


def test_an_empty_mark_is_refused_since_it_would_be_found_everywhere() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        CutterConfig(separators=((),))
    with pytest.raises(ValueError, match="at least one token"):
        CutterConfig(message_starts=((1,), ()))
