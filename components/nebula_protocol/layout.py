"""A prompt after cutting: block hashes for prefix caching, and segments for position-independent caching."""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from nebula_protocol.hashing import HashArray
from nebula_protocol.ids import SegmentHash
from nebula_protocol.tokens import TokenArray


class Mark(StrEnum):
    """What delimited a segment, in order of precedence."""

    SPAN = "span"
    SEPARATOR = "separator"
    MESSAGE = "message"
    CONTENT = "content"


# A Struct since a prompt has dozens: a frozen dataclass takes twelve times as long to make.
class Segment(msgspec.Struct, frozen=True, gc=False):
    """Tokens [start, end) of the prompt that are worth an entry of their own."""

    start: int
    end: int
    segment_hash: SegmentHash
    mark: Mark

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class PromptLayout:
    """What the router looks up and the worker stores. Segments are disjoint and ascending; gaps lie between them."""

    tokens: TokenArray
    block_size_tokens: int
    block_hashes: HashArray
    segments: tuple[Segment, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def segment_tokens(self) -> int:
        return sum(segment.num_tokens for segment in self.segments)
