"""Repeated computation, judged afterwards by what there really was."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nebula_bench.cluster.worker_log import WorkerLog
from nebula_protocol.ids import SegmentHash
from nebula_protocol.plan import Source
from nebula_protocol.receipt import Receipt

_Productions = Mapping[SegmentHash, Sequence[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class PrefilledRequest:
    """A request whose prefill is done. Times are those of the log."""

    decided_at_s: float
    done_at_s: float
    receipt: Receipt
    known_segments: frozenset[SegmentHash] = frozenset()
    """Of which the router knew a copy, stored or on its way, when it decided."""


@dataclass(slots=True)
class ComputedAgain:
    """Tokens of segments that were computed although a copy was stored or on its way when the request was placed."""

    unknowingly: int = 0
    on_purpose: int = 0
    """The router knew of it."""
    as_fallback: int = 0
    """Planned as a hit, whatever there was."""


def judge_repeated(
    log: WorkerLog, requests: Sequence[PrefilledRequest], measured: Iterable[PrefilledRequest]
) -> ComputedAgain:
    """
    Args:
        requests: all of the run: what they computed was there for others.
        measured: those of them that count.
    """
    productions = _productions(requests)
    found = ComputedAgain()
    for request in measured:
        for segment in request.receipt.segments:
            num_tokens = segment.end - segment.start - segment.prefix_tokens
            if segment.done is not Source.COMPUTE or not num_tokens:
                continue
            if segment.planned is not Source.COMPUTE:
                found.as_fallback += num_tokens
            elif not _existed(log, productions, segment.segment_hash, request.decided_at_s):
                continue
            elif segment.segment_hash in request.known_segments:
                found.on_purpose += num_tokens
            else:
                found.unknowingly += num_tokens
    return found


def _productions(requests: Iterable[PrefilledRequest]) -> _Productions:
    """When each segment was being made: from the decision that caused it to the end of the request."""
    made: dict[SegmentHash, list[tuple[float, float]]] = defaultdict(list)
    for request in requests:
        for segment in request.receipt.segments:
            # A segment at offset 0 is its own prefix and is not kept as a segment.
            if segment.done is Source.COMPUTE and segment.start > 0:
                made[segment.segment_hash].append((request.decided_at_s, request.done_at_s))
    return made


def _existed(log: WorkerLog, productions: _Productions, segment_hash: SegmentHash, at_s: float) -> bool:
    if log.is_stored(segment_hash, at_s):
        return True
    return any(start_s < at_s < end_s for start_s, end_s in productions.get(segment_hash, ()))
