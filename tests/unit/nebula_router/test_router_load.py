"""Workers of these tests: a step has a floor of 10 ms and takes 0.1 ms a token; a copied token takes 0.01 ms."""

from math import inf

import numpy as np
import pytest
from support.placement_case import round_card, worker

from nebula_protocol.cost import CostFit
from nebula_protocol.ids import RequestId, WorkerWithDpRank
from nebula_protocol.receipt import StepWork
from nebula_router.core.load import LoadTracker
from nebula_router.core.queued_work import QueuedWork
from nebula_router.core.worker_profile import WorkerProfile

ONE, TWO, THREE = worker(1), worker(2), worker(3)
A, B, C = RequestId("a"), RequestId("b"), RequestId("c")


def tracker(*worker_ids: int) -> LoadTracker:
    loads = LoadTracker()
    for worker_id in worker_ids or (1, 2):
        loads.put_worker(WorkerProfile(worker(worker_id), round_card(worker_id)))
    return loads


def dispatch(
    loads: LoadTracker, request_id: RequestId, at: WorkerWithDpRank, tokens: int, now_s: float, waits_s: float = 0.0
) -> None:
    loads.record_dispatch(request_id, at, QueuedWork(tokens, 0.0), runnable_at_s=now_s + waits_s, now_s=now_s)


def test_workers_without_work_are_free() -> None:
    load = tracker().snapshot((ONE, TWO), 0.0)
    assert load.free_in_s.tolist() == [0.0, 0.0]
    assert load.late_from_s.tolist() == [inf, inf]
    assert load.cost_factor.tolist() == [1.0, 1.0]
    assert load.work_price == 0.0


def test_a_worker_is_free_when_its_step_and_those_in_front_are_done() -> None:
    loads = tracker()
    dispatch(loads, A, ONE, 200, now_s=0.0)
    dispatch(loads, B, ONE, 300, now_s=0.010)
    load = loads.snapshot((ONE, TWO), 0.010)
    # A's step lasts 10 + 20 ms, of which 10 have passed; B's 300 tokens add 30 ms and no floor of their own.
    assert load.free_in_s.tolist() == pytest.approx([0.050, 0.0])
    assert load.queued_tokens.tolist() == [300.0, 0.0]
    assert load.co_batched.tolist() == [1.0, 0.0]
    # B's step begins in 20 ms, and lasts 10 + 30 ms without others.
    assert load.turn_in_s.tolist() == pytest.approx([0.020, 0.0])
    assert load.drained_in_s.tolist() == pytest.approx([0.060, 0.0])


def test_attention_and_loading_count_as_engine_time() -> None:
    loads = LoadTracker()
    loads.put_worker(
        WorkerProfile(ONE, round_card(1, step_cost=CostFit(step_s=0.010, per_token_s=0.0001, per_pair_s=1e-8)))
    )
    loads.record_dispatch(A, ONE, QueuedWork(200, 1e6, load_s=0.005), runnable_at_s=0.0, now_s=0.0)
    # 10 ms + 200 * 0.1 ms + 1e6 * 10 ns + 5 ms
    assert loads.snapshot((ONE,), 0.0).free_in_s[0] == pytest.approx(0.045)


def test_columns_come_in_the_order_asked_for() -> None:
    loads = tracker(1, 2, 3)
    dispatch(loads, A, TWO, 200, now_s=0.0)
    assert loads.snapshot((THREE, TWO), 0.0).free_in_s.tolist() == pytest.approx([0.0, 0.030])
    assert loads.snapshot((TWO, ONE, THREE), 0.0).free_in_s.tolist() == pytest.approx([0.030, 0.0, 0.0])


def test_an_unknown_worker_reads_as_an_idle_one() -> None:
    loads = tracker(1)
    dispatch(loads, A, TWO, 200, now_s=0.0)
    loads.record_receipt(A, TWO, None, now_s=1.0)
    loads.record_failure(A, TWO, now_s=1.0)
    assert loads.snapshot((ONE, TWO), 1.0).free_in_s.tolist() == [0.0, 0.0]
    assert loads.num_outstanding == 0


def test_a_receipt_frees_the_worker() -> None:
    loads = tracker()
    dispatch(loads, A, ONE, 200, now_s=0.0)
    loads.record_receipt(A, ONE, None, now_s=0.035)
    assert loads.snapshot((ONE,), 0.035).free_in_s[0] == 0.0


def test_an_overdue_step_is_expected_to_last_as_long_again() -> None:
    loads = tracker()
    dispatch(loads, A, ONE, 200, now_s=0.0)
    # It should have ended at 0.030.
    assert loads.snapshot((ONE,), 0.034).free_in_s[0] == pytest.approx(0.004)
    assert loads.snapshot((ONE,), 5.030).free_in_s[0] == pytest.approx(5.0)


def test_a_failure_frees_the_worker_at_once() -> None:
    loads = tracker()
    dispatch(loads, A, ONE, 200, now_s=0.0)
    dispatch(loads, B, ONE, 300, now_s=0.0)
    loads.record_failure(B, ONE, now_s=0.010)
    assert loads.snapshot((ONE,), 0.010).free_in_s[0] == pytest.approx(0.020)
    loads.record_failure(A, ONE, now_s=0.010)
    assert loads.snapshot((ONE,), 0.010).free_in_s[0] == 0.0


def test_a_requests_work_at_helpers_is_its_own() -> None:
    loads = tracker()
    dispatch(loads, A, ONE, 200, now_s=0.0)
    dispatch(loads, A, TWO, 400, now_s=0.0)
    loads.record_receipt(A, TWO, None, now_s=0.050)
    assert loads.snapshot((ONE, TWO), 0.030).free_in_s.tolist() == pytest.approx([0.0, 0.0])
    assert loads.num_outstanding == 1


def test_who_waits_for_segments_counts_only_for_those_who_wait_as_well() -> None:
    loads = tracker()
    dispatch(loads, A, ONE, 400, now_s=0.0, waits_s=0.100)
    load = loads.snapshot((ONE,), 0.020)
    assert load.free_in_s[0] == 0.0
    assert load.late_from_s[0] == pytest.approx(0.080)
    # 0.080, and 10 ms + 400 * 0.1 ms
    assert load.late_free_in_s[0] == pytest.approx(0.130)


def test_arrived_segments_start_their_request_without_any_message() -> None:
    loads = tracker()
    dispatch(loads, A, ONE, 400, now_s=0.0, waits_s=0.100)
    # It has run since 0.100 and takes 10 + 40 ms.
    load = loads.snapshot((ONE,), 0.120)
    assert load.free_in_s[0] == pytest.approx(0.030)
    assert load.late_from_s[0] == inf


def test_receipts_teach_how_fast_a_worker_is() -> None:
    loads = tracker()
    dispatch(loads, A, ONE, 200, now_s=0.0)
    # The fit says 10 + 20 ms; 36.3 ms is 1.21 times that, and the first receipt counts half on a logarithmic scale.
    work = StepWork(
        computed_tokens=200, attention_pairs=0.0, num_steps=1, step_tokens=200, step_pairs=0.0, step_s=0.0363
    )
    loads.record_receipt(A, ONE, work, now_s=0.0363)
    assert loads.snapshot((ONE, TWO), 0.0363).cost_factor.tolist() == pytest.approx([1.1, 1.0])
    dispatch(loads, B, ONE, 200, now_s=1.0)
    assert loads.snapshot((ONE,), 1.0).free_in_s[0] == pytest.approx(0.033)


def test_a_profile_may_bring_a_factor_along() -> None:
    loads = LoadTracker()
    loads.put_worker(WorkerProfile(ONE, round_card(1), cost_factor=1.5))
    dispatch(loads, A, ONE, 200, now_s=0.0)
    # 1.5 * (10 + 20 ms)
    load = loads.snapshot((ONE,), 0.0)
    assert load.cost_factor[0] == pytest.approx(1.5)
    assert load.free_in_s[0] == pytest.approx(0.045)


def test_a_card_that_is_told_again_changes_nothing_outstanding_or_learnt() -> None:
    loads = tracker()
    dispatch(loads, A, ONE, 200, now_s=0.0)
    loads.put_worker(WorkerProfile(ONE, round_card(1)))
    assert loads.snapshot((ONE,), 0.0).free_in_s[0] == pytest.approx(0.030)


def test_a_removed_worker_takes_its_work_along() -> None:
    loads = tracker()
    dispatch(loads, A, ONE, 200, now_s=0.0)
    loads.record_transfer(ONE, TWO, 1000, now_s=0.0)
    loads.remove_worker(ONE)
    loads.remove_worker(ONE)
    load = loads.snapshot((ONE, TWO), 0.0)
    assert load.free_in_s.tolist() == [0.0, 0.0]
    assert load.link_out_busy_s.tolist() == [0.0, 0.0]
    assert loads.num_outstanding == 0


def test_a_new_worker_does_not_inherit_from_a_removed_one() -> None:
    loads = tracker()
    dispatch(loads, A, ONE, 200, now_s=0.0)
    loads.record_transfer(ONE, TWO, 1000, now_s=0.0)
    loads.remove_worker(ONE)
    loads.put_worker(WorkerProfile(THREE, round_card(3)))
    load = loads.snapshot((THREE,), 0.0)
    for column in (load.free_in_s, load.queued_tokens, load.recent_work_s, load.link_out_busy_s, load.link_in_busy_s):
        assert column.tolist() == [0.0]
    assert load.cost_factor.tolist() == [1.0]


def test_there_is_room_for_many_workers() -> None:
    ids = range(1, 101)
    loads = tracker(*ids)
    for worker_id in ids:
        dispatch(loads, A, worker(worker_id), worker_id, now_s=0.0)
    workers = tuple(worker(worker_id) for worker_id in ids)
    expected = 0.010 + 0.0001 * np.arange(1, 101)
    assert loads.snapshot(workers, 0.0).free_in_s == pytest.approx(expected)


def test_transfers_take_both_ends_of_the_link() -> None:
    loads = tracker(1, 2, 3)
    loads.record_transfer(ONE, TWO, 1000, now_s=0.0)
    loads.record_transfer(ONE, THREE, 500, now_s=0.0)
    load = loads.snapshot((ONE, TWO, THREE), 0.004)
    # 1,000 tokens take 10 ms and 500 take 5 ms; 4 ms have passed.
    assert load.link_out_busy_s.tolist() == pytest.approx([0.011, 0.0, 0.0])
    assert load.link_in_busy_s.tolist() == pytest.approx([0.0, 0.006, 0.001])


def test_a_link_that_has_been_idle_starts_from_now() -> None:
    loads = tracker()
    loads.record_transfer(ONE, TWO, 1000, now_s=0.0)
    loads.record_transfer(ONE, TWO, 1000, now_s=5.0)
    assert loads.snapshot((ONE,), 5.0).link_out_busy_s[0] == pytest.approx(0.010)


def test_recent_work_tells_who_was_given_least() -> None:
    loads = tracker()
    dispatch(loads, A, ONE, 200, now_s=0.0)
    dispatch(loads, B, ONE, 300, now_s=0.0)
    dispatch(loads, C, ONE, 100, now_s=0.0)
    # A opens a step (10 + 20 ms), B opens the next one (10 + 30 ms), C shares that (10 ms).
    assert loads.snapshot((ONE, TWO), 0.0).recent_work_s.tolist() == pytest.approx([0.080, 0.0])
