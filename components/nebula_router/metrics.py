"""What the router counts. Names follow Dynamo's: `dynamo_component_nebula_<noun>_<unit>[_total]`."""

from collections.abc import Iterable
from enum import StrEnum
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from nebula_protocol.events import SplitVerdict
from nebula_protocol.plan import Source
from nebula_protocol.receipt import FallbackReason, Receipt
from nebula_protocol.subjects import Topic
from nebula_router.core.evidence import GapReason
from nebula_router.decide import Decided, Learned

_PREFIX = "dynamo_component_nebula_"
_DECISION_BUCKETS_S = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)
_TTFT_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_EVENT_TOPICS = (Topic.KV_EVENTS, Topic.PIC_EVENTS)
_UNKNOWN_VALUES = ()
"""Of a label whose values are not known beforehand."""


class MetricName(StrEnum):
    """Every metric of the router, with what it counts as its value's documentation in `docs/metrics.md`."""

    DECISION_SECONDS = f"{_PREFIX}decision_seconds"
    TTFT_ESTIMATED_SECONDS = f"{_PREFIX}ttft_estimated_seconds"
    TTFT_OBSERVED_SECONDS = f"{_PREFIX}ttft_observed_seconds"
    REQUESTS = f"{_PREFIX}requests_total"
    RETRIES = f"{_PREFIX}retries_total"
    PROMPT_TOKENS = f"{_PREFIX}prompt_tokens_total"
    HIT_TOKENS = f"{_PREFIX}hit_tokens_total"
    COMPUTED_TOKENS = f"{_PREFIX}computed_tokens_total"
    RECOMPUTED_TOKENS = f"{_PREFIX}recomputed_tokens_total"
    INVALID_HIT_TOKENS = f"{_PREFIX}invalid_hit_tokens_total"
    REPEATED_TOKENS = f"{_PREFIX}repeated_tokens_total"
    GHOST_HIT_TOKENS = f"{_PREFIX}ghost_hit_tokens_total"
    SPLIT_PREFIX_RATIO = f"{_PREFIX}split_prefix_ratio"
    SPLIT_REVIEWS = f"{_PREFIX}split_reviews_total"
    SEGMENTS = f"{_PREFIX}segments_total"
    FALLBACKS = f"{_PREFIX}fallbacks_total"
    EVENTS = f"{_PREFIX}events_total"
    EVENT_GAPS = f"{_PREFIX}event_gaps_total"
    STATE_FETCHES = f"{_PREFIX}state_fetches_total"
    INDEX_ENTRIES = f"{_PREFIX}index_entries"
    WORKERS = f"{_PREFIX}workers"


class HitKind(StrEnum):
    PREFIX = "prefix"
    LOCAL = "local"
    FETCHED = "fetched"


class GhostKind(StrEnum):
    PREFIX = "prefix"
    SEGMENT = "segment"


class RouterMetrics:
    """One registry of its own, read by Dynamo's metrics callback."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._decision = self._histogram(MetricName.DECISION_SECONDS, "Time of one decision", _DECISION_BUCKETS_S)
        self._estimated = self._histogram(
            MetricName.TTFT_ESTIMATED_SECONDS, "Prefill completion as estimated", _TTFT_BUCKETS_S
        )
        self._observed = self._histogram(
            MetricName.TTFT_OBSERVED_SECONDS, "Prefill completion as seen by the router", _TTFT_BUCKETS_S
        )
        self._requests = self._counter(MetricName.REQUESTS, "Requests placed", target_worker_id=_UNKNOWN_VALUES)
        self._retries = self._counter(MetricName.RETRIES, "Requests placed anew after a worker was lost")
        self._prompt = self._counter(MetricName.PROMPT_TOKENS, "Prompt tokens")
        self._hits = self._counter(MetricName.HIT_TOKENS, "Tokens whose KV was found", kind=HitKind)
        self._computed = self._counter(MetricName.COMPUTED_TOKENS, "Prompt tokens computed")
        self._recomputed = self._counter(MetricName.RECOMPUTED_TOKENS, "Segment hits computed again by fusion")
        self._invalid = self._counter(MetricName.INVALID_HIT_TOKENS, "Planned as a hit, not there when wanted")
        self._repeated = self._counter(
            MetricName.REPEATED_TOKENS, "Computed although a copy existed that the router did not know"
        )
        self._ghosts = self._counter(
            MetricName.GHOST_HIT_TOKENS, "Computed although held once, until room was lacking", kind=GhostKind
        )
        self._segments = self._counter(MetricName.SEGMENTS, "Segments by where their KV came from", source=Source)
        self._fallbacks = self._counter(
            MetricName.FALLBACKS, "Segments computed instead, by reason", reason=FallbackReason
        )
        self._events = self._counter(MetricName.EVENTS, "Event messages applied", topic=_EVENT_TOPICS)
        self._gaps = self._counter(
            MetricName.EVENT_GAPS, "Gaps in a worker's events", topic=_EVENT_TOPICS, reason=GapReason
        )
        self._states = self._counter(
            MetricName.STATE_FETCHES, "Full states fetched from workers", result=("ok", "failed")
        )
        self._entries = self._gauge(MetricName.INDEX_ENTRIES, "Entries in the index", "kind")
        self._workers = self._gauge(MetricName.WORKERS, "Workers in the index")
        self._split = self._gauge(MetricName.SPLIT_PREFIX_RATIO, "Share of each store for prefix blocks")
        self._split.set(float("nan"))
        self._reviews = self._counter(
            MetricName.SPLIT_REVIEWS, "Windows of requests, by what they did to the split", verdict=SplitVerdict
        )

    def observe_decision(self, decided: Decided) -> None:
        self._decision.observe(decided.decision.decision_us / 1e6)
        self._estimated.observe(decided.plan.estimate.completion_s)
        self._requests.labels(str(decided.plan.target.worker_id)).inc()

    def observe_ttft(self, ttft_s: float) -> None:
        self._observed.observe(ttft_s)

    def observe_receipt(self, receipt: Receipt, learned: Learned) -> None:
        self._prompt.inc(receipt.prompt_tokens)
        self._hits.labels(HitKind.PREFIX).inc(receipt.prefix_hit_tokens)
        self._hits.labels(HitKind.LOCAL).inc(receipt.local_hit_tokens)
        self._hits.labels(HitKind.FETCHED).inc(receipt.fetched_hit_tokens)
        self._computed.inc(receipt.computed_tokens)
        self._recomputed.inc(receipt.recomputed_tokens)
        self._invalid.inc(receipt.invalid_hit_tokens)
        self._repeated.inc(learned.repeated_tokens)
        self._ghosts.labels(GhostKind.PREFIX).inc(learned.ghost_hits.prefix_tokens)
        self._ghosts.labels(GhostKind.SEGMENT).inc(learned.ghost_hits.segment_tokens)
        for outcome in receipt.segments:
            self._segments.labels(outcome.done).inc()
            if outcome.fallback is not None:
                self._fallbacks.labels(outcome.fallback).inc()

    def set_split(self, prefix_ratio: float) -> None:
        self._split.set(prefix_ratio)

    def count_split_review(self, verdict: SplitVerdict) -> None:
        self._reviews.labels(verdict).inc()

    def count_retry(self) -> None:
        self._retries.inc()

    def count_events(self, topic: str) -> None:
        self._events.labels(topic).inc()

    def count_gap(self, topic: str, reason: str) -> None:
        self._gaps.labels(topic, reason).inc()

    def count_state_fetch(self, result: str) -> None:
        self._states.labels(result).inc()

    def set_index_size(self, *, num_blocks: int, num_segments: int, num_workers: int) -> None:
        self._entries.labels("block").set(num_blocks)
        self._entries.labels("segment").set(num_segments)
        self._workers.set(num_workers)

    def exposition(self) -> str:
        """All metrics in Prometheus text format."""
        return generate_latest(self._registry).decode()

    def _counter(self, name: MetricName, documentation: str, **labels: Iterable[str]) -> Counter:
        """Labels come with their values: those exist from the start, so that a rate never misses the first."""
        counter = Counter(name.removesuffix("_total"), documentation, tuple(labels), registry=self._registry)
        if labels:
            for values in product(*labels.values()):
                counter.labels(*values)
        return counter

    def _gauge(self, name: MetricName, documentation: str, *labels: str) -> Gauge:
        return Gauge(name, documentation, labels, registry=self._registry)

    def _histogram(self, name: MetricName, documentation: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(name, documentation, registry=self._registry, buckets=tuple(buckets))
