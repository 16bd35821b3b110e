"""What one process of a graph exports on its /metrics."""

import math
from collections.abc import Iterable, Iterator, Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families

from nebula_bench.serving.histogram import Histogram
from nebula_protocol.ids import WorkerId

WORKERS = "dynamo_component_nebula_workers"
RETRIES = "dynamo_component_nebula_retries_total"
REPEATED_TOKENS = "dynamo_component_nebula_repeated_tokens_total"
STEP_LAG = "dynamo_component_nebula_worker_step_lag_seconds"
PREFILLS = "dynamo_component_nebula_worker_prefills_total"
IN_FLIGHT = "dynamo_component_inflight_requests"

_WORKER_ID_LABEL = "worker_id"
_ENDPOINT_LABEL = "dynamo_endpoint"
_ENDPOINT = "generate"
"""Dynamo counts each endpoint of a process with the id under which the process serves it."""

Labels = Mapping[str, str]


class ProcessMetrics:
    """One scrape."""

    def __init__(self, exposition: str) -> None:
        """
        Raises:
            ValueError: this is not Prometheus text.
        """
        self._samples: list[tuple[str, Labels, float]] = [
            (sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families(exposition)
            for sample in family.samples
        ]

    def names(self) -> frozenset[str]:
        """As samples are named: a histogram has `_bucket`, `_count` and `_sum`."""
        return frozenset(name for name, _, _ in self._samples)

    def total(self, name: str, **labels: str) -> float:
        """The sum over all samples with these labels; 0 where there is no such metric."""
        return sum(value for found, value in self._named(name) if labels.items() <= found.items())

    def num_workers(self) -> int | None:
        """Workers in the index of a router; None where its own metrics are missing from this answer."""
        return int(self.total(WORKERS)) if any(True for _ in self._named(WORKERS)) else None

    def num_in_flight(self) -> int:
        """Requests that the process serves right now."""
        return int(self.total(IN_FLIGHT, **{_ENDPOINT_LABEL: _ENDPOINT}))

    def worker_id(self) -> WorkerId | None:
        """The id under which the process serves in Dynamo; None while it does not serve yet."""
        ids = (
            labels[_WORKER_ID_LABEL]
            for _, labels, _ in self._samples
            if labels.get(_ENDPOINT_LABEL) == _ENDPOINT and _WORKER_ID_LABEL in labels
        )
        found = next(ids, None)
        return None if found is None else WorkerId(int(found, 16))

    def histogram(self, name: str) -> Histogram:
        counts: dict[float, float] = {}
        for labels, value in self._named(f"{name}_bucket"):
            bound = float(labels["le"])
            counts[bound] = counts.get(bound, 0.0) + value
        bounds = tuple(sorted(counts))
        return Histogram(bounds, tuple(counts[bound] for bound in bounds))

    def _named(self, name: str) -> Iterator[tuple[Labels, float]]:
        return ((labels, value) for other, labels, value in self._samples if other == name and not math.isnan(value))


async def scrape(client: httpx.AsyncClient, url: str) -> ProcessMetrics | None:
    """None when the process does not answer: it is dead, or not up yet."""
    try:
        response = await client.get(url)
        return ProcessMetrics(response.text) if response.is_success else None
    except (httpx.HTTPError, ValueError):
        return None


def total_histogram(scrapes: Iterable[ProcessMetrics], name: str) -> Histogram:
    """The histogram `name` of several processes together."""
    total = Histogram((), ())
    for metrics in scrapes:
        total = total + metrics.histogram(name)
    return total
