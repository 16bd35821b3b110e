"""What one unlimited cache of segments could give a trace: the ideal that cells are measured against."""

from collections.abc import Iterable

from nebula_bench.workload import TraceRequest


def ideal_hit_ratio(trace: Iterable[TraceRequest], min_segment_tokens: int) -> float:
    """Share of the tokens that lie in a segment which some earlier request had too; short segments have no entry."""
    seen: set[str] = set()
    hit = total = 0
    for request in trace:
        for segment in request.segments:
            total += segment.tokens
            hit += segment.tokens if segment.id in seen and segment.tokens >= min_segment_tokens else 0
        seen.update(segment.id for segment in request.segments)
    return hit / total if total else 0.0
