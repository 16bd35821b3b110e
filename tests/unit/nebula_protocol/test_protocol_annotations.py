import pytest

from nebula_protocol.annotations import MAX_SPANS, RequestOptions, parse_annotations
from nebula_protocol.errors import AnnotationError
from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, Fusion, cacheblend, legolink


def test_without_annotations_the_deployment_decides() -> None:
    assert parse_annotations([]) == RequestOptions(spans=(), pic=None, cache_salt="", fusion=None)


def test_all_options_are_read_in_any_order() -> None:
    options = parse_annotations(["nebula.salt=tenant-7", "nebula.pic=off", "nebula.spans=[[20,40], [0,10]]"])
    assert options == RequestOptions(spans=((20, 40), (0, 10)), pic=False, cache_salt="tenant-7")


def test_reuse_can_be_asked_for() -> None:
    assert parse_annotations(["nebula.pic=on"]).pic is True


def test_a_salt_may_contain_an_equals_sign() -> None:
    assert parse_annotations(["nebula.salt=a=b"]).cache_salt == "a=b"


@pytest.mark.parametrize(
    "other", ["token_ids", "formatted_prompt", "nebula", "nebulae.pic=maybe", "", "x=nebula.pic=1"]
)
def test_annotations_of_others_are_passed_over(other: str) -> None:
    assert parse_annotations([other]) == RequestOptions()


@pytest.mark.parametrize("annotation", ["nebula.", "nebula.fuse=cacheblend", "nebula.Pic=on", "nebula. pic=on"])
def test_an_unknown_key_is_refused_with_the_known_ones(annotation: str) -> None:
    with pytest.raises(AnnotationError, match=r"known are nebula\.spans, nebula\.pic, nebula\.salt, nebula\.fusion"):
        parse_annotations([annotation])


@pytest.mark.parametrize(
    ("value", "fusion"),
    [
        ("legolink:32", legolink(32)),
        ("cacheblend:0.3", cacheblend(0.3)),
        ("none", NO_FUSION),
        ("full", FULL_FUSION),
    ],
)
def test_a_fusion_can_be_asked_for(value: str, fusion: Fusion) -> None:
    assert parse_annotations([f"nebula.fusion={value}"]).fusion == fusion


@pytest.mark.parametrize("value", ["", "legolink:x", "cacheblend:2", "none:1", "CacheBlend"])
def test_a_malformed_fusion_is_refused_with_what_is_wrong(value: str) -> None:
    with pytest.raises(AnnotationError, match=r"annotation nebula\.fusion: .*(legolink|cacheblend)"):
        parse_annotations([f"nebula.fusion={value}"])


@pytest.mark.parametrize("annotation", ["nebula.spans=[]", "nebula.pic=on", "nebula.salt=a", "nebula.fusion=none"])
def test_a_key_given_twice_is_refused(annotation: str) -> None:
    with pytest.raises(AnnotationError, match="given twice"):
        parse_annotations([annotation, annotation])


@pytest.mark.parametrize(
    "value",
    ["", "0,10", "[0,10]", "[[0]]", "[[0,1,2]]", "[[0,1.5]]", "[[0,1.0]]", "[[true,2]]", '[["0","1"]]', "{}", "null",
     "[[0,10]", "[[0,10]] x", "[[0,1\ud800]]"],
)  # fmt: skip
def test_malformed_spans_are_refused_with_the_right_form(value: str) -> None:
    with pytest.raises(AnnotationError, match=r"nebula\.spans=\[\[0,512\],\[512,900\]\]"):
        parse_annotations([f"nebula.spans={value}"])


@pytest.mark.parametrize("annotation", ["nebula.pic", "nebula.pic=", "nebula.pic=true", "nebula.pic=OFF"])
def test_a_malformed_switch_is_refused_with_the_right_form(annotation: str) -> None:
    with pytest.raises(AnnotationError, match=r"nebula\.pic=on or nebula\.pic=off"):
        parse_annotations([annotation])


@pytest.mark.parametrize("salt", ["", "two words", "line\nbreak", "größe", "x" * 129])
def test_a_malformed_salt_is_refused_with_the_right_form(salt: str) -> None:
    with pytest.raises(AnnotationError, match="1 to 128 visible ASCII characters"):
        parse_annotations([f"nebula.salt={salt}"])


def test_as_many_spans_as_allowed_are_read_and_one_more_is_refused() -> None:
    text = ",".join(f"[{2 * i},{2 * i + 1}]" for i in range(MAX_SPANS))
    assert len(parse_annotations([f"nebula.spans=[{text}]"]).spans) == MAX_SPANS
    with pytest.raises(AnnotationError, match="4097 spans, more than 4096"):
        parse_annotations([f"nebula.spans=[{text},[9000,9001]]"])


def test_a_flood_of_text_is_refused_unread_and_never_echoed() -> None:
    flood = "[" * 1_000_000
    for annotation in (
        f"nebula.spans={flood}",
        f"nebula.pic={flood}",
        f"nebula.salt={flood}",
        f"nebula.fusion={flood}",
        f"nebula.{flood}",
    ):
        with pytest.raises(AnnotationError) as raised:
            parse_annotations([annotation])
        assert len(str(raised.value)) < 300
