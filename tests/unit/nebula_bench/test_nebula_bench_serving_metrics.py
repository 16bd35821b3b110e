"""Distributions and what processes export, read back."""

import math

import pytest

from nebula_bench.serving.histogram import Histogram
from nebula_bench.serving.process_metrics import ProcessMetrics, total_histogram

INF = math.inf
# 6 observations up to 1, 2 more up to 2, 2 beyond.
LAGS = Histogram((1.0, 2.0, INF), (6.0, 8.0, 10.0))

EXPOSITION = """\
# HELP dynamo_component_inflight_requests In flight
# TYPE dynamo_component_inflight_requests gauge
dynamo_component_inflight_requests{dynamo_endpoint="worker_kv_query_source_1",worker_id="1f"} 5
dynamo_component_inflight_requests{dynamo_endpoint="generate",worker_id="ff00000000000010"} 2
# HELP dynamo_component_nebula_workers Workers in the index
# TYPE dynamo_component_nebula_workers gauge
dynamo_component_nebula_workers 7
# HELP lag_seconds Lag
# TYPE lag_seconds histogram
lag_seconds_bucket{le="0.5",rank="0"} 1
lag_seconds_bucket{le="+Inf",rank="0"} 3
lag_seconds_bucket{le="0.5",rank="1"} 4
lag_seconds_bucket{le="+Inf",rank="1"} 4
lag_seconds_count{rank="0"} 3
lag_seconds_sum{rank="0"} 2.5
"""


def test_a_quantile_lies_in_its_bucket_as_if_observations_were_spread_evenly() -> None:
    # The 3rd of 10: half of the first bucket's 6. The 7th: half of the second bucket's 2.
    assert LAGS.quantile(0.3) == pytest.approx(0.5)
    assert LAGS.quantile(0.7) == pytest.approx(1.5)


def test_what_lies_beyond_the_last_finite_bound_counts_as_that_bound() -> None:
    assert LAGS.quantile(0.99) == 2.0


@pytest.mark.parametrize("empty", [Histogram((), ()), Histogram((1.0, INF), (0.0, 0.0))])
def test_there_is_no_quantile_of_nothing(empty: Histogram) -> None:
    assert empty.quantile(0.5) is None


def test_histograms_add_up_bucket_by_bucket() -> None:
    doubled = LAGS + LAGS
    assert doubled == Histogram(LAGS.bounds, (12.0, 16.0, 20.0))
    unchanged = LAGS + Histogram((), ())
    assert unchanged == LAGS


def test_histograms_with_other_bounds_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="different bounds"):
        LAGS + Histogram((3.0, INF), (1.0, 1.0))


def test_a_process_is_known_by_the_id_under_which_it_serves_requests() -> None:
    metrics = ProcessMetrics(EXPOSITION)
    assert metrics.worker_id() == 0xFF00000000000010
    assert metrics.num_in_flight() == 2
    assert metrics.num_workers() == 7


def test_a_process_that_does_not_serve_yet_has_no_id() -> None:
    assert ProcessMetrics("").worker_id() is None


def test_samples_are_summed_over_the_labels_that_are_not_asked_for() -> None:
    metrics = ProcessMetrics(EXPOSITION)
    assert metrics.total("lag_seconds_count") == 3
    assert metrics.total("lag_seconds_bucket", rank="1") == 8  # 4 + 4
    assert metrics.total("lag_seconds_bucket", rank="1", le="0.5") == 4


def test_a_missing_metric_counts_nothing() -> None:
    assert ProcessMetrics(EXPOSITION).total("dynamo_component_nebula_retries_total") == 0


def test_a_histogram_is_summed_over_its_labels_and_over_processes() -> None:
    # In one process at most 0.5: 1 + 4; all: 3 + 4.
    one = ProcessMetrics(EXPOSITION).histogram("lag_seconds")
    assert one == Histogram((0.5, INF), (5.0, 7.0))
    both = total_histogram([ProcessMetrics(EXPOSITION)] * 2, "lag_seconds")
    assert both == Histogram((0.5, INF), (10.0, 14.0))


def test_an_answer_without_the_routers_own_metrics_is_not_an_empty_index() -> None:
    assert ProcessMetrics("dynamo_component_uptime_seconds 3\n").num_workers() is None
