"""What may come from a peer: checked before any memory is taken for it."""

import math
from collections.abc import Sequence

from nebula_protocol.data_plane import AskSegments, DataPlaneCard, Offers, SegmentOffer, Welcome
from nebula_protocol.errors import DecodeError
from nebula_protocol.tokens import TOKEN_DTYPE

MAX_SEGMENTS = 1024
MAX_SEGMENT_TOKENS = 1 << 20
MAX_WAIT_S = 120.0
HASH_BYTES = 16
MAX_HANDSHAKE_BYTES = 1 << 16
"""Of a frame from somebody not known yet."""
MAX_HOME_FRAME_BYTES = 1 << 18
"""A question names at most `MAX_SEGMENTS` segments."""
_FRAME_BYTES = 1 << 12
_OFFER_BYTES = 256
_PAGE_BYTES = 9
"""Of a page's number in MessagePack."""


def mismatch(home: DataPlaneCard, source: DataPlaneCard) -> str | None:
    """Why pages of one are of no use to the other; None where they are."""
    for name, own, others in (
        ("data plane version", home.version, source.version),
        ("transport", home.kind, source.kind),
        ("domain", home.domain_id, source.domain_id),
        ("page geometry", home.geometry, source.geometry),
    ):
        if own != others:
            return f"{name} differs: {own} and {others}"
    return None


def check_ask(ask: AskSegments, source: DataPlaneCard) -> None:
    """
    Raises:
        DecodeError: it asks for more than any prompt has, or for nothing that this worker may give.
    """
    if not 0 < len(ask.segments) <= MAX_SEGMENTS:
        raise DecodeError(f"{len(ask.segments)} segments in one question")
    if not (math.isfinite(ask.wait_s) and 0 <= ask.wait_s <= MAX_WAIT_S):
        raise DecodeError(f"a wait of {ask.wait_s} s")
    if ask.domain_id.partition("/")[0] != source.domain_id:
        raise DecodeError("segments of another domain")
    for wanted in ask.segments:
        if len(wanted.segment_hash) != HASH_BYTES or not 0 < wanted.num_tokens <= MAX_SEGMENT_TOKENS:
            raise DecodeError(f"a segment of {wanted.num_tokens} tokens, hash of {len(wanted.segment_hash)} bytes")


def max_offers_bytes(ask: AskSegments, page_tokens: int) -> int:
    """Size of the largest honest answer to a question."""
    size_bytes = _FRAME_BYTES
    for wanted in ask.segments:
        size_bytes += wanted.num_tokens * TOKEN_DTYPE.itemsize + _OFFER_BYTES
        size_bytes += num_pages_of(wanted.num_tokens, page_tokens) * _PAGE_BYTES
    return size_bytes


def check_offers(offers: Offers, ask: AskSegments, undecided: set[int], welcome: Welcome) -> None:
    """Takes what is decided out of `undecided`.

    Raises:
        DecodeError: something that was not asked for, of another size, or at no place in the source's memory.
    """
    for index in (*(offer.index for offer in offers.there), *offers.absent):
        if index not in undecided:
            raise DecodeError(f"an answer to segment {index}, which is not open")
        undecided.remove(index)
    for offer in offers.there:
        _check_offer(offer, ask.segments[offer.index].num_tokens, welcome)
    if offers.is_last and undecided:
        raise DecodeError(f"{len(undecided)} segments left undecided")


def check_indices(indices: Sequence[int], open_indices: set[int]) -> None:
    """
    Raises:
        DecodeError: one is not open, or comes twice.
    """
    if len(set(indices)) != len(indices) or not open_indices.issuperset(indices):
        raise DecodeError("segments that are not open are taken")


def num_pages_of(num_tokens: int, page_tokens: int) -> int:
    return -(-num_tokens // page_tokens)


def _check_offer(offer: SegmentOffer, num_tokens: int, welcome: Welcome) -> None:
    num_pages = num_pages_of(num_tokens, welcome.source.geometry.page_tokens)
    if len(offer.token_bytes) != num_tokens * TOKEN_DTYPE.itemsize or len(offer.pages) != num_pages:
        raise DecodeError(f"{len(offer.pages)} pages for a segment of {num_tokens} tokens")
    if min(offer.pages) < 0 or max(offer.pages) >= welcome.num_pages or offer.stored_position < 0:
        raise DecodeError("a page outside the source's memory")
