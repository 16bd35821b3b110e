"""What a prefill worker counts. Names follow Dynamo's: `dynamo_component_nebula_<noun>_<unit>[_total]`."""

from collections.abc import Callable
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from nebula_protocol.receipt import Receipt
from pic_worker.core.transfer_outcome import TransferOutcome

_PREFIX = "dynamo_component_nebula_worker_"
_STEP_BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
_TRANSFER_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_LAG_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class WorkerMetricName(StrEnum):
    STEP_SECONDS = f"{_PREFIX}step_seconds"
    STEP_LAG_SECONDS = f"{_PREFIX}step_lag_seconds"
    STEP_TOKENS = f"{_PREFIX}step_tokens_total"
    RECOMPUTED_TOKENS = f"{_PREFIX}recomputed_tokens_total"
    PREFILLS = f"{_PREFIX}prefills_total"
    QUEUE_SECONDS = f"{_PREFIX}queue_seconds_total"
    WAIT_SECONDS = f"{_PREFIX}wait_seconds_total"
    SPLIT_PREFIX_RATIO = f"{_PREFIX}split_prefix_ratio"
    TRANSFERS = f"{_PREFIX}transfers_total"
    TRANSFER_BYTES = f"{_PREFIX}transfer_bytes_total"
    TRANSFER_SECONDS = f"{_PREFIX}transfer_seconds"
    LEASES = f"{_PREFIX}leases"
    RESERVATIONS = f"{_PREFIX}reservations"


class LeaseHolder(StrEnum):
    PEERS = "peers"
    REQUESTS = "requests"


class Direction(StrEnum):
    IN = "in"
    OUT = "out"


Count = Callable[[], int]


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
        self._split = Gauge(
            WorkerMetricName.SPLIT_PREFIX_RATIO, "Share of the store for prefix blocks", registry=registry
        )
        self._transfers = Counter(
            _counter_name(WorkerMetricName.TRANSFERS),
            "Segments that were to come from other workers, by how that ended",
            ["transport", "outcome"],
            registry=registry,
        )
        self._bytes = Counter(
            _counter_name(WorkerMetricName.TRANSFER_BYTES),
            "KV of segments copied from and to other workers",
            ["transport", "direction"],
            registry=registry,
        )
        self._transfer = Histogram(
            WorkerMetricName.TRANSFER_SECONDS,
            "Time of copying what one source has for one request",
            ["transport"],
            registry=registry,
            buckets=_TRANSFER_BUCKETS_S,
        )
        self._leases = Gauge(
            WorkerMetricName.LEASES, "Pins that the data plane has on the store", ["holder"], registry=registry
        )
        self._reservations = Gauge(
            WorkerMetricName.RESERVATIONS, "Segments that room is reserved for until they have come", registry=registry
        )
        for holder in LeaseHolder:
            self._leases.labels(holder)

    def set_split(self, prefix_ratio: float) -> None:
        self._split.set(prefix_ratio)

    def transfers(self, transport: str) -> "TransferMetrics":
        """A `TransferMeter` of what moves over this transport; all that it counts starts at zero."""
        return TransferMetrics(self._transfers, self._bytes, self._transfer, transport)

    def watch_pins(self, *, for_peers: Count, for_requests: Count, reservations: Count) -> None:
        """Asks these whenever it is read."""
        self._leases.labels(LeaseHolder.PEERS).set_function(for_peers)
        self._leases.labels(LeaseHolder.REQUESTS).set_function(for_requests)
        self._reservations.set_function(reservations)

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


class TransferMetrics:
    """Of one transport."""

    def __init__(self, transfers: Counter, num_bytes: Counter, seconds: Histogram, transport: str) -> None:
        self._ends = {outcome: transfers.labels(transport, outcome) for outcome in TransferOutcome}
        self._bytes = {direction: num_bytes.labels(transport, direction) for direction in Direction}
        self._seconds = seconds.labels(transport)

    def count_transfer(self, outcome: TransferOutcome) -> None:
        self._ends[outcome].inc()

    def count_received(self, num_bytes: int) -> None:
        self._bytes[Direction.IN].inc(num_bytes)

    def count_sent(self, num_bytes: int) -> None:
        self._bytes[Direction.OUT].inc(num_bytes)

    def observe_copy(self, duration_s: float) -> None:
        self._seconds.observe(duration_s)


def _counter_name(name: WorkerMetricName) -> str:
    return name.removesuffix("_total")
