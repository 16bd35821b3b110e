import numpy as np

from nebula_protocol.ids import SegmentHash
from nebula_protocol.layout import Mark, PromptLayout, Segment
from nebula_protocol.tokens import as_token_array


def test_a_layout_counts_its_tokens_and_those_in_segments() -> None:
    segments = (
        Segment(2, 5, SegmentHash(bytes(16)), Mark.SPAN),
        Segment(5, 9, SegmentHash(bytes(16)), Mark.CONTENT),
    )
    layout = PromptLayout(as_token_array(range(10)), 16, np.array([], dtype=np.uint64), segments)
    # 3 tokens from 2 to 5 and 4 from 5 to 9.
    assert (layout.num_tokens, layout.segment_tokens) == (10, 7)
    assert [segment.num_tokens for segment in segments] == [3, 4]


def test_marks_are_listed_in_order_of_precedence() -> None:
    assert list(Mark) == [Mark.SPAN, Mark.SEPARATOR, Mark.MESSAGE, Mark.CONTENT]
