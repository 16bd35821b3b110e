"""The live replays: what is read from a graph's messages, and what becomes rows and tables."""

import msgspec
import pytest

from nebula_bench.cluster.repeated import ComputedAgain
from nebula_bench.data_plane.cluster_watch import ClusterWatch
from nebula_bench.data_plane.replay_live import judge_watched, replay_spec
from nebula_bench.data_plane.replay_report import reduction, replay_markdown, replay_measurements
from nebula_bench.data_plane.replay_run import (
    AccountingReplays,
    AccountingRun,
    Compared,
    Phases,
    ReplayedTwice,
    mean_phases_ms,
)
from nebula_bench.data_plane.replay_settings import LiveReplaySettings
from nebula_bench.replay.loop_lag import LoopLagMeter
from nebula_bench.replay.outcome import RequestOutcome
from nebula_bench.replay.runner import ReplayRecord
from nebula_bench.replay.settings import ReplaySettings
from nebula_bench.replay.summary import Quantiles, TokenCounts, summarize
from nebula_bench.results import Measurement
from nebula_bench.serving.graph_replay import GraphReplay
from nebula_bench.serving.histogram import Histogram
from nebula_protocol.codec import encode
from nebula_protocol.events import Decision, Envelope, PicEvent, PicEventData, SegmentStored, WorkerPicEvents
from nebula_protocol.ids import (
    DomainId,
    EventId,
    Origin,
    RequestId,
    SegmentHash,
    WorkerEpoch,
    WorkerId,
    WorkerWithDpRank,
)
from nebula_protocol.plan import Estimate, Plan, SegmentPlan, Source
from nebula_protocol.receipt import Receipt, SegmentOutcome, StepWork, Timing
from nebula_protocol.subjects import Topic
from nebula_router.settings import Accounting

A, B = SegmentHash(b"a"), SegmentHash(b"b")
START_S = 1_000.0
"""Of the replay, in seconds of the epoch."""
TARGET = WorkerWithDpRank(WorkerId(1))
SETTINGS = LiveReplaySettings()


def message(topic: Topic, payload: msgspec.Struct, at_s: float) -> bytes:
    published_at = round((START_S + at_s) * 1_000)
    return encode(Envelope(publisher_id=1, sequence=0, published_at=published_at, topic=topic, payload=encode(payload)))


def decided(request_id: str, at_s: float, *unknown: int) -> bytes:
    """A decision about segments A and B, both to be computed."""
    plan = Plan(
        request_id=RequestId(request_id),
        domain_id=DomainId("d"),
        target=TARGET,
        segments=tuple(
            SegmentPlan(start=start, end=start + 100, segment_hash=name, source=Source.COMPUTE, from_worker=None)
            for start, name in ((100, A), (200, B))
        ),
        prefix_hit_tokens=0,
        wait_budget_s=0.0,
        estimate=Estimate(free_in_s=0.0, arrive_in_s=0.0, compute_s=0.0, completion_s=0.0),
    )
    decision = Decision(
        request_id=plan.request_id,
        plan=plan,
        prompt_tokens=300,
        candidates=(),
        decision_us=1.0,
        unknown_segments=unknown,
    )
    return message(Topic.DECISIONS, decision, at_s)


def stored(name: SegmentHash, at_s: float) -> bytes:
    data: PicEventData = SegmentStored(segment_hash=name, domain_id=DomainId("d"), num_tokens=100, origin=Origin.ALONE)
    events = WorkerPicEvents(
        worker_id=WorkerId(2), epoch=WorkerEpoch(1), events=(PicEvent(event_id=EventId(0), data=data),)
    )
    return message(Topic.PIC_EVENTS, events, at_s)


def receipt(request_id: str, *, queue_s: float = 0.0, wait_s: float = 0.0, compute_s: float = 0.0) -> Receipt:
    return Receipt(
        request_id=RequestId(request_id),
        worker=TARGET,
        epoch=WorkerEpoch(1),
        prompt_tokens=300,
        prefix_hit_tokens=0,
        segment_hit_tokens=0,
        local_hit_tokens=0,
        fetched_hit_tokens=0,
        recomputed_tokens=0,
        computed_tokens=300,
        invalid_hit_tokens=0,
        segments=tuple(
            SegmentOutcome(
                start=start,
                end=start + 100,
                segment_hash=name,
                planned=Source.COMPUTE,
                done=Source.COMPUTE,
                fallback=None,
                stored=True,
            )
            for start, name in ((100, A), (200, B))
        ),
        timing=Timing(queue_s=queue_s, wait_s=wait_s, compute_s=compute_s, total_s=queue_s + wait_s + compute_s),
        work=StepWork(computed_tokens=300, attention_pairs=0, num_steps=1, step_tokens=300, step_pairs=0, step_s=0.0),
        last_event_ids={},
    )


def answered(request_id: str, sent_s: float, first_s: float, *, compute_s: float = 0.5) -> RequestOutcome:
    return RequestOutcome(
        position=0,
        prompt_tokens=300,
        scheduled_s=sent_s,
        sent_s=sent_s,
        first_content_s=first_s,
        finished_s=first_s,
        receipt=receipt(request_id, compute_s=compute_s),
        error=None,
    )


# ---- what the graph told ----


def judged(watch: ClusterWatch, *outcomes: RequestOutcome, publish_delay_s: float = 0.0) -> ComputedAgain:
    record = ReplayRecord(outcomes=list(outcomes), started_at_unix_s=START_S)
    return judge_watched(record, watch, publish_delay_s)


def test_a_copy_that_the_router_did_not_know_is_told_from_one_that_it_knew() -> None:
    watch = ClusterWatch(
        decisions=[decided("r", 2.0, 0)],
        # Both were there when the request was sent; the router knew of B alone.
        store_events=[stored(A, 1.0), stored(B, 1.0)],
    )
    assert judged(watch, answered("r", 1.9, 2.5)) == ComputedAgain(unknowingly=100, on_purpose=100)


def test_late_events_happened_earlier_than_they_were_published() -> None:
    watch = ClusterWatch(decisions=[decided("r", 2.0, 0, 1)], store_events=[stored(A, 2.3)])
    assert judged(watch, answered("r", 1.9, 2.5)) == ComputedAgain()
    assert judged(watch, answered("r", 1.9, 2.5), publish_delay_s=0.4) == ComputedAgain(unknowingly=100)


def test_what_a_request_stored_itself_was_not_there_before_however_late_its_decision_is_published() -> None:
    watch = ClusterWatch(decisions=[decided("r", 2.6, 0, 1)], store_events=[stored(A, 2.4), stored(B, 2.4)])
    assert judged(watch, answered("r", 1.9, 2.5)) == ComputedAgain()


def test_events_that_overtook_one_another_are_put_in_order() -> None:
    watch = ClusterWatch(store_events=[stored(B, 3.0), stored(A, 1.0)])
    log = watch.worker_log(0.0)
    assert [log.is_stored(name, START_S + 2.0) for name in (A, B)] == [True, False]


@pytest.mark.parametrize(
    ("first_token_s", "prefill_s", "repeated_tokens"),
    [(1.6, 0.9, 200), (1.4, 0.9, 0), (1.6, 0.3, 0)],
    ids=["on its way", "client has it", "worker is done"],
)
def test_what_another_request_is_computing_is_on_its_way_until_it_is_done(
    first_token_s: float, prefill_s: float, repeated_tokens: int
) -> None:
    watch = ClusterWatch(decisions=[decided("first", 1.0, 0, 1), decided("second", 1.5, 0, 1)])
    first = answered("first", 0.9, first_token_s, compute_s=prefill_s)
    # Sent at 1.45 s.
    found = judged(watch, first, answered("second", 1.45, 2.0))
    assert found == ComputedAgain(unknowingly=repeated_tokens)


def test_an_answer_without_a_decision_is_not_judged() -> None:
    assert judged(ClusterWatch(store_events=[stored(A, 1.0)]), answered("r", 1.9, 2.5)) == ComputedAgain()


# ---- the graph ----


def test_a_run_differs_from_another_by_its_accounting_alone() -> None:
    merged, events = (replay_spec(one, SETTINGS.repeated, SETTINGS) for one in ("merged", "events"))
    assert (merged.name, merged.config) == ("nebula", SETTINGS.config)
    assert set(merged.overrides) ^ set(events.overrides) == {"--Router.accounting=merged", "--Router.accounting=events"}
    assert {"--PrefillWorker.store_capacity_tokens=25000", "--PrefillWorker.sim.event_delay_s=0.1"} < set(
        merged.overrides
    )


def test_the_router_keeps_what_it_expects_as_long_in_simulated_time() -> None:
    # 5 s at scale 1.
    slow = SETTINGS.model_copy(update={"time_scale": 8.0})
    assert {"--Router.ttl_s=40.0", "--Common.time_scale=8.0"} < set(replay_spec("merged", slow.invalid, slow).overrides)


# ---- numbers ----


def test_phases_are_means_in_simulated_milliseconds() -> None:
    timed = [
        (receipt("a", queue_s=0.2, wait_s=0.4, compute_s=0.6), 1.6),
        (receipt("b", queue_s=0.6, wait_s=0.0, compute_s=1.0), 2.0),
    ]
    # Means of 0.4, 0.2, 0.8 and 0.4 s, a quarter of each.
    means = mean_phases_ms(timed, 4.0)
    assert (means.queue, means.wait, means.compute, means.outside) == pytest.approx((100.0, 50.0, 200.0, 100.0))
    assert mean_phases_ms([], 4.0) == Phases(0.0, 0.0, 0.0, 0.0)


def test_a_reduction_is_the_share_of_the_others_error_that_we_do_not_make() -> None:
    assert reduction(0.001, 0.02) == pytest.approx(0.95)
    assert reduction(0.0, 0.02) == 1.0
    assert reduction(0.03, 0.02) == pytest.approx(-0.5)
    assert reduction(0.0, 0.0) == 0.0


def run(
    *, invalid: int = 0, repeated: int = 0, hits: int = 600, ttft_ms: float = 40.0, errors: int = 0
) -> AccountingRun:
    """Of 1,000 prompt tokens in all."""
    return AccountingRun(
        ttft_ms=Quantiles(ttft_ms, 2 * ttft_ms, 3 * ttft_ms),
        tokens=TokenCounts(
            prompt=1_000,
            prefix_hit=0,
            local_hit=hits,
            fetched_hit=0,
            helper_computed=0,
            recomputed=0,
            computed=1_000 - hits,
            invalid_hit=invalid,
        ),
        computed_again=ComputedAgain(unknowingly=repeated, on_purpose=5),
        phases_ms=Phases(1.0, 2.0, 3.0, 4.0),
        num_errors=errors,
    )


def graph_replay(lag_s: float) -> GraphReplay:
    meter = LoopLagMeter()
    meter.lags_s.append(lag_s)
    settings = ReplaySettings(url="u", rate_per_s=1.0)
    return GraphReplay(
        graph="nebula",
        num_prefill_workers=7,
        summary=summarize(ReplayRecord(outcomes=[answered("r", 0.0, 1.0)], lag=meter), settings),
        prefill_ms=Quantiles(1.0, 2.0, 3.0),
        step_lag=Histogram((0.01, float("inf")), (10.0, 10.0)),
    )


def twice(
    accounting: Accounting, live: AccountingRun, *, virtual: AccountingRun | None = None, lag_s: float = 0.001
) -> ReplayedTwice:
    return ReplayedTwice(accounting, live, graph_replay(lag_s), virtual or run())


def found(
    *, merged: AccountingRun | None = None, virtual: AccountingRun | None = None, errors: int = 0
) -> AccountingReplays:
    invalid = Compared(
        SETTINGS.invalid,
        twice("merged", merged or run(invalid=1), virtual=virtual),
        twice("optimistic", run(invalid=100), lag_s=0.004),
    )
    repeated = Compared(
        SETTINGS.repeated,
        twice("merged", run(repeated=1)),
        twice("events", run(repeated=20, errors=errors)),
    )
    return AccountingReplays(invalid, repeated)


def rows(replays: AccountingReplays) -> dict[str, Measurement]:
    return {row.id: row for row in replay_measurements(replays, SETTINGS)}


def test_errors_are_shares_of_the_prompts_and_compared_with_the_other_views() -> None:
    measured = rows(found())
    # 1 of 1,000 tokens against 100, and against 20.
    assert measured["live_invalid_reduction"].value == pytest.approx(0.99)
    assert measured["live_repeated_reduction"].value == pytest.approx(0.95)
    assert measured["live_invalid_merged_ratio"].value == 0.001
    assert measured["live_invalid_optimistic_ratio"].value == 0.1
    assert measured["live_repeated_events_ratio"].value == 0.02
    assert all(row.ok for row in measured.values())


def test_a_view_that_hardly_errs_is_nothing_to_be_better_than() -> None:
    replays = found()
    weak = Compared(SETTINGS.invalid, twice("merged", run()), twice("optimistic", run(invalid=9)))
    assert not rows(AccountingReplays(weak, replays.repeated))["live_invalid_optimistic_ratio"].ok


@pytest.mark.parametrize(
    ("virtual", "hit_gap", "ttft_gap"),
    [(run(hits=620, ttft_ms=50.0), 0.02, 0.2), (run(hits=560, ttft_ms=40.0), 0.04, 0.0)],
)
def test_gaps_to_virtual_time_have_no_direction(virtual: AccountingRun, hit_gap: float, ttft_gap: float) -> None:
    measured = rows(found(virtual=virtual))
    hit, ttft = measured["live_virtual_hit_gap"], measured["live_virtual_ttft_gap"]
    assert hit.value == pytest.approx(hit_gap)
    assert ttft.value == pytest.approx(ttft_gap)
    assert (hit.ok, ttft.ok) == (hit_gap < 0.03, ttft_gap < 0.15)


def test_the_largest_lag_and_every_error_of_all_runs_are_told() -> None:
    measured = rows(found(errors=2))
    assert measured["live_client_lag_p99_ms"].value == pytest.approx(4.0)
    # All steps were noticed within 10 ms: half of the way to it at the median.
    assert measured["live_step_lag_p50_ms"].value == pytest.approx(5.0)
    assert (measured["live_replay_errors"].value, measured["live_replay_errors"].ok) == (2, False)
    assert measured["live_repeated_store_tokens"].value == 25_000


def test_each_pair_is_a_table_with_live_runs_beside_virtual_ones() -> None:
    text = replay_markdown(found(), SETTINGS)
    assert "| Invalid hits | `merged` | virtual | `optimistic` | virtual |" in text
    assert "| Repeated computation | `merged` | virtual | `events` | virtual |" in text
    assert "| of the prompts' tokens: invalid hits | 0.100% | 0.000% | 10.000% | 0.000% |" in text
    assert "| repeated | 0.100% | 0.000% | 2.000% | 0.000% |" in text
    assert "Stores of 25,000 tokens a worker, events 100 ms late:" in text
