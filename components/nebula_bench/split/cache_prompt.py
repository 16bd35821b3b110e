"""A request as a cache sees it: a chain of blocks, and segments."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from nebula_bench.pseudo_tokens import PseudoVocabulary
from nebula_bench.workload import TraceRequest, TraceSegment
from nebula_protocol.cutter import cut_prompt
from nebula_protocol.cutting import CutterConfig
from nebula_protocol.hashing import accumulate_prefix, prefix_keys
from nebula_protocol.ids import DomainId, EngineBlockHash, SegmentHash
from nebula_protocol.tokens import TokenArray

BLOCK_SIZE_TOKENS = 16
DOMAIN = DomainId("trace")

# The trace's spans name every segment.
_SPANS_ONLY = CutterConfig(content_chunks=None, message_starts=(), min_segment_tokens=32)


@dataclass(frozen=True, slots=True)
class CacheSegment:
    """Tokens [start, end) of a prompt."""

    segment_hash: SegmentHash
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class CachePrompt:
    num_tokens: int
    blocks: tuple[EngineBlockHash, ...]
    """Named by all that comes before them too."""
    segments: tuple[CacheSegment, ...]


def cache_prompts(trace: Iterable[TraceRequest]) -> Iterator[CachePrompt]:
    """The requests' prompts, each segment id as the same pseudo tokens wherever it occurs."""
    vocabulary = PseudoVocabulary()
    known: dict[TraceSegment, TokenArray] = {}
    for request in trace:
        for segment in request.segments:
            if segment not in known:
                known[segment] = vocabulary.tokens(segment.id, segment.tokens)
        tokens = np.concatenate([known[segment] for segment in request.segments])
        layout = cut_prompt(tokens, _SPANS_ONLY, block_size_tokens=BLOCK_SIZE_TOKENS, spans=request.spans())
        yield CachePrompt(
            num_tokens=layout.num_tokens,
            blocks=tuple(prefix_keys(accumulate_prefix(layout.block_hashes)).tolist()),
            segments=tuple(CacheSegment(one.segment_hash, one.start, one.end) for one in layout.segments),
        )
