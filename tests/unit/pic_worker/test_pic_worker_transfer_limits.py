"""What a peer may say: anything else is refused before memory is taken for it."""

import math
from dataclasses import dataclass

import msgspec
import pytest

from nebula_protocol.codec import encode
from nebula_protocol.data_plane import (
    AskSegments,
    DataPlaneCard,
    DataPlaneKind,
    Hello,
    Offers,
    PageGeometry,
    SegmentOffer,
    Welcome,
)
from nebula_protocol.errors import DecodeError
from nebula_protocol.ids import DomainId, Origin, RequestId, SegmentHash, WorkerEpoch, WorkerId
from nebula_protocol.messages import WantedSegment
from pic_worker.core.handshake import Side, is_proof, prove
from pic_worker.core.transfer_limits import (
    MAX_HOME_FRAME_BYTES,
    MAX_SEGMENT_TOKENS,
    MAX_SEGMENTS,
    check_ask,
    check_indices,
    check_offers,
    max_offers_bytes,
    mismatch,
)
from pic_worker.core.transfer_speed import TransferSpeed

DOMAIN = DomainId("0123456789abcdef")
CARD = DataPlaneCard(
    worker_id=WorkerId(2**64 - 3),
    epoch=WorkerEpoch(1),
    kind=DataPlaneKind.TCP,
    host="127.0.0.1",
    port=1,
    domain_id=DOMAIN,
    geometry=PageGeometry(page_tokens=16, page_bytes=4096, num_ranks=2),
)
WELCOME = Welcome(source=CARD, num_pages=10)
SECRET = b"0123456789abcdef"


def wanted(num_tokens: int = 20, key: bytes = bytes(16)) -> WantedSegment:
    return WantedSegment(segment_hash=SegmentHash(key), num_tokens=num_tokens)


def ask(*segments: WantedSegment, domain_id: DomainId = DOMAIN, wait_s: float = 1.0) -> AskSegments:
    return AskSegments(request_id=RequestId("r"), domain_id=domain_id, wait_s=wait_s, segments=segments)


def offer(index: int = 0, num_tokens: int = 20, pages: tuple[int, ...] = (9, 0)) -> SegmentOffer:
    return SegmentOffer(
        index=index, token_bytes=bytes(4 * num_tokens), origin=Origin.ALONE, stored_position=0, pages=pages
    )


def test_a_question_for_the_tenant_of_the_same_domain_is_taken() -> None:
    check_ask(ask(wanted(), domain_id=DomainId(f"{DOMAIN}/ffff")), CARD)


@pytest.mark.parametrize(
    "wrong",
    [
        ask(),
        ask(*[wanted()] * (MAX_SEGMENTS + 1)),
        ask(wanted(0)),
        ask(wanted(-1)),
        ask(wanted(MAX_SEGMENT_TOKENS + 1)),
        ask(wanted(key=b"short")),
        ask(wanted(), domain_id=DomainId("another")),
        ask(wanted(), domain_id=DomainId(f"{DOMAIN}x")),
        ask(wanted(), wait_s=-1.0),
        ask(wanted(), wait_s=math.nan),
        ask(wanted(), wait_s=math.inf),
        ask(wanted(), wait_s=1e9),
    ],
)
def test_a_question_out_of_bounds_is_refused(wrong: AskSegments) -> None:
    with pytest.raises(DecodeError):
        check_ask(wrong, CARD)


def test_the_largest_question_fits_into_a_frame() -> None:
    largest = [wanted(MAX_SEGMENT_TOKENS, bytes([index % 256]) * 16) for index in range(MAX_SEGMENTS)]
    assert len(msgspec.msgpack.encode(ask(*largest))) <= MAX_HOME_FRAME_BYTES


def test_the_largest_honest_answer_fits_into_its_frame() -> None:
    # 33 tokens take 3 pages of 16.
    question = ask(*[wanted(33)] * 5)
    there = tuple(offer(index, 33, (2**40, 2**40, 2**40)) for index in range(5))
    assert len(encode(Offers(there=there, is_last=True))) <= max_offers_bytes(question, 16)


def test_answers_are_taken_once_each() -> None:
    undecided = {0, 1, 2}
    question = ask(wanted(), wanted(), wanted())
    check_offers(Offers(there=(offer(1),), absent=(0,)), question, undecided, WELCOME)
    assert undecided == {2}
    with pytest.raises(DecodeError):
        check_offers(Offers(absent=(0,)), question, undecided, WELCOME)


@pytest.mark.parametrize(
    "wrong",
    [
        Offers(there=(offer(1),)),
        Offers(there=(offer(-1),)),
        Offers(there=(offer(0), offer(0))),
        Offers(there=(offer(0),), absent=(0,)),
        Offers(there=(offer(num_tokens=19),)),
        Offers(there=(offer(pages=(1,)),)),
        Offers(there=(offer(pages=(1, 10)),)),
        Offers(there=(offer(pages=(-1, 1)),)),
        Offers(is_last=True),
    ],
)
def test_an_answer_that_does_not_fit_the_question_is_refused(wrong: Offers) -> None:
    with pytest.raises(DecodeError):
        check_offers(wrong, ask(wanted()), {0}, WELCOME)


def test_only_what_was_offered_is_taken_and_only_once() -> None:
    check_indices((0, 2), {0, 1, 2})
    for wrong in ((0, 0), (3,), (-1,)):
        with pytest.raises(DecodeError):
            check_indices(wrong, {0, 1, 2})


@dataclass(frozen=True, slots=True)
class Difference:
    name: str
    card: DataPlaneCard


@pytest.mark.parametrize(
    "difference",
    [
        Difference("version", msgspec.structs.replace(CARD, version=2)),
        Difference("transport", msgspec.structs.replace(CARD, kind=DataPlaneKind.NIXL)),
        Difference("domain", msgspec.structs.replace(CARD, domain_id=DomainId("x"))),
        Difference(
            "geometry",
            msgspec.structs.replace(CARD, geometry=PageGeometry(page_tokens=16, page_bytes=4096, num_ranks=1)),
        ),
    ],
    ids=lambda difference: difference.name,
)
def test_workers_that_do_not_fit_are_told_why(difference: Difference) -> None:
    reason = mismatch(CARD, difference.card)
    assert reason is not None
    assert difference.name in reason


def test_workers_at_other_addresses_fit() -> None:
    assert mismatch(CARD, msgspec.structs.replace(CARD, worker_id=WorkerId(5), host="h", port=9)) is None


def test_a_proof_holds_for_its_side_and_its_numbers_alone() -> None:
    hello, nonce = Hello(nonce=bytes(32), home=CARD), b"n" * 32
    proof = prove(SECRET, Side.HOME, hello, nonce)
    assert is_proof(proof, SECRET, Side.HOME, hello, nonce)
    assert not is_proof(proof, SECRET, Side.SOURCE, hello, nonce)
    assert not is_proof(proof, b"fedcba9876543210", Side.HOME, hello, nonce)
    assert not is_proof(proof, SECRET, Side.HOME, hello, b"m" * 32)
    assert not is_proof(proof, SECRET, Side.HOME, Hello(nonce=b"x" * 32, home=CARD), nonce)
    stranger = msgspec.structs.replace(CARD, domain_id=DomainId("x"))
    assert not is_proof(proof, SECRET, Side.HOME, Hello(nonce=bytes(32), home=stranger), nonce)
    assert SECRET not in proof


def test_a_way_that_was_slow_is_avoided_until_that_is_long_ago() -> None:
    speed = TransferSpeed()
    assert speed.is_worth_it(10**12, compute_s=0.001, veto_ratio=1.5, now_s=0.0)
    speed.record(1_000, 1.0, now_s=0.0)
    # 3,000 bytes at 1,000 a second take 3 s: over 1.5 times 1.9 s, not over 1.5 times 2 s.
    assert not speed.is_worth_it(3_000, compute_s=1.9, veto_ratio=1.5, now_s=1.0)
    assert speed.is_worth_it(3_000, compute_s=2.0, veto_ratio=1.5, now_s=1.0)
    assert speed.is_worth_it(3_000, compute_s=1.9, veto_ratio=1.5, now_s=31.0)


def test_speeds_are_averaged_with_more_weight_on_the_past() -> None:
    speed = TransferSpeed()
    speed.record(1_000, 1.0, now_s=0.0)
    speed.record(2_000, 1.0, now_s=1.0)
    # 1,000 + 0.3 x (2,000 - 1,000)
    assert speed.bytes_per_s(1.0) == pytest.approx(1_300)
