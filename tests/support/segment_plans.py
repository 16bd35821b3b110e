"""Segments of a prompt as a plan names them."""

from collections.abc import Sequence

from nebula_protocol.hashing import hash_segment
from nebula_protocol.plan import SegmentPlan, Source
from nebula_protocol.tokens import as_token_array


def segments_of(tokens: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[SegmentPlan, ...]:
    ids = as_token_array(list(tokens))
    return tuple(
        SegmentPlan(start=start, end=end, segment_hash=hash_segment(ids[start:end]), source=Source.LOCAL)
        for start, end in spans
    )
