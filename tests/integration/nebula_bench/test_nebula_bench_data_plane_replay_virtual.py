"""The graph of a live replay in virtual time."""

from pathlib import Path

import pytest
from support.small_traces import retrieval_trace

from nebula_bench.data_plane.replay_live import replay_spec
from nebula_bench.data_plane.replay_run import AccountingRun
from nebula_bench.data_plane.replay_settings import LiveReplaySettings, ReplayScene
from nebula_bench.data_plane.replay_virtual import cluster_of, replay_virtual
from nebula_router.settings import Accounting

CONFIG = Path(__file__).parents[3] / "configs" / "nebula-7p1d-sim.yaml"
SETTINGS = LiveReplaySettings(config=CONFIG, num_requests=200, rate_per_s=60.0)
TINY = ReplayScene(store_capacity_tokens=2_000, event_delay_s=0.1)


def run(accounting: Accounting, scene: ReplayScene, time_scale: float = 4.0) -> AccountingRun:
    settings = SETTINGS.model_copy(update={"time_scale": time_scale})
    return replay_virtual(replay_spec(accounting, scene, settings), retrieval_trace(SETTINGS.num_requests), settings)


def test_the_cluster_is_the_one_that_the_graph_would_be() -> None:
    cluster = cluster_of(replay_spec("events", SETTINGS.repeated, SETTINGS))
    assert (cluster.prefill_workers, cluster.decode_workers) == (7, 1)
    assert (cluster.router.accounting, cluster.router.ttl_s) == ("events", 20.0)
    worker = cluster.worker
    assert (worker.sim.model, worker.sim.system, worker.sim.time_scale) == ("Qwen3-14B", "h100_sxm", 4.0)
    assert (worker.store_capacity_tokens, worker.sim.event_delay_s) == (25_000, 0.1)
    assert (cluster.noise.step_ratio, cluster.noise.worker_ratio) == (0.0, 0.0)


def test_a_slower_scale_shows_the_same_replay_with_less_of_what_does_not_scale() -> None:
    quick, slow = (run("merged", SETTINGS.invalid, scale) for scale in (1.0, 8.0))
    assert quick.hit_ratio == pytest.approx(slow.hit_ratio, abs=0.02)
    assert quick.ttft_ms.p50 == pytest.approx(slow.ttft_ms.p50, rel=0.1)
    # Two messages of 0.5 ms.
    assert quick.phases_ms.outside == pytest.approx(1.0)
    assert slow.phases_ms.outside == pytest.approx(1.0 / 8)


def test_events_alone_repeat_and_what_nothing_corrects_is_wrong_much_more_often() -> None:
    merged, events, optimistic = (run(accounting, TINY) for accounting in ("merged", "events", "optimistic"))
    assert 10 * merged.repeated_ratio < events.repeated_ratio
    assert 2 * merged.invalid_ratio < optimistic.invalid_ratio
