"""What a prefill worker counts. Names follow Dynamo's: `dynamo_component_nebula_<noun>_<unit>[_total]`."""

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram

from nebula_protocol.receipt import Receipt

_PREFIX = "dynamo_component_nebula_worker_"
_STEP_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
_LAG_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class WorkerMetricName(StrEnum):
    STEP_SECONDS = f"{_PREFIX}step_seconds"
    STEP_LAG_SECONDS = f"{_PREFIX}step_lag_seconds"
    STEP_TOKENS = f"{_PREFIX}step_tokens_total"
    RECOMPUTED_TOKENS = f"{_PREFIX}recomputed_tokens_total"
    PREFILLS = f"{_PREFIX}prefills_total"
    QUEUE_SECONDS = f"{_PREFIX}queue_seconds_total"
    WAIT_SECONDS = f"{_PREFIX}wait_seconds_total"


class WorkerMetrics:
    """One registry of its own, bridged into Dynamo's /metrics."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self._step = Histogram(
            WorkerMetricName.STEP_SECONDS, "Duration of engine steps", registry=registry, buckets=_STEP_BUCKETS_S
        )
        self._lag = Histogram(
            WorkerMetricName.STEP_LAG_SECONDS,
            "How late the process noticed that a simulated step was over",
            registry=registry,
            buckets=_LAG_BUCKETS_S,
        )
        self._tokens = Counter(_counter_name(WorkerMetricName.STEP_TOKENS), "Tokens computed", registry=registry)
        self._recomputed = Counter(
            _counter_name(WorkerMetricName.RECOMPUTED_TOKENS),
            "Tokens computed again beside the engine's own, for reused segments and gaps between them",
            registry=registry,
        )
        self._prefills = Counter(
            _counter_name(WorkerMetricName.PREFILLS), "Prefills done, by kind", ["kind"], registry=registry
        )
        self._queue = Counter(
            _counter_name(WorkerMetricName.QUEUE_SECONDS), "Time runnable requests queued", registry=registry
        )
        self._wait = Counter(
            _counter_name(WorkerMetricName.WAIT_SECONDS), "Time requests waited for segments", registry=registry
        )

    def observe_step(self, duration_s: float, num_tokens: int, *, lag_s: float) -> None:
        self._step.observe(duration_s)
        self._lag.observe(max(0.0, lag_s))
        self._tokens.inc(num_tokens)

    def observe_engine_step(self, duration_s: float, num_tokens: int, *, recomputed_tokens: int) -> None:
        """A step of an engine that keeps its own time."""
        self._step.observe(duration_s)
        self._tokens.inc(num_tokens)
        self._recomputed.inc(recomputed_tokens)

    def observe_receipt(self, receipt: Receipt, *, is_helper: bool) -> None:
        self._prefills.labels("helper" if is_helper else "prompt").inc()
        self._queue.inc(receipt.timing.queue_s)
        self._wait.inc(receipt.timing.wait_s)


def _counter_name(name: WorkerMetricName) -> str:
    return name.removesuffix("_total")
