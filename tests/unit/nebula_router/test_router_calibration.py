import math

import pytest

from nebula_protocol.cost import CostFit
from nebula_protocol.ids import WorkerId, WorkerWithDpRank
from nebula_protocol.receipt import StepWork
from nebula_router.core.calibration import MAX_FACTOR, MIN_FACTOR, CostCalibration

WORKER = WorkerWithDpRank(WorkerId(1))
FIT = CostFit(step_s=0.010, per_token_s=0.0001, per_pair_s=1e-9)


def steps(times_the_fit: float) -> StepWork:
    # Two steps of 500 tokens and 1e6 pairs each: 2 * 10 ms + 1000 * 0.1 ms + 2e6 * 1 ns = 122 ms by the fit.
    return StepWork(
        computed_tokens=800,
        attention_pairs=1.5e6,
        num_steps=2,
        step_tokens=1000,
        step_pairs=2e6,
        step_s=0.122 * times_the_fit,
    )


def test_a_worker_is_as_fast_as_its_card_says_until_it_is_measured() -> None:
    assert CostCalibration().factor(WORKER) == 1.0


def test_a_known_factor_is_where_a_new_worker_starts() -> None:
    calibration = CostCalibration()
    calibration.add_worker(WORKER, 1.3)
    assert calibration.factor(WORKER) == pytest.approx(1.3)


def test_the_first_receipt_counts_as_much_as_the_card() -> None:
    # Half way from 1.0 to 1.21 on a logarithmic scale: sqrt(1.21) = 1.1.
    assert CostCalibration().record_steps(WORKER, steps(1.21), FIT) == pytest.approx(1.1)


def test_steady_receipts_are_believed() -> None:
    calibration = CostCalibration()
    for _ in range(100):
        calibration.record_steps(WORKER, steps(1.3), FIT)
    # The card's own weight is 1/2 * 2/3 * ... * 18/19 * 0.95**82 = 1/19 * 0.015.
    assert calibration.factor(WORKER) == pytest.approx(1.3, rel=0.001)


def test_one_stalled_step_does_not_make_a_slow_worker() -> None:
    calibration = CostCalibration()
    for _ in range(50):
        calibration.record_steps(WORKER, steps(1.0), FIT)
    # Clipped to a surprise of 1.5, of which one receipt is worth 1/20: 1.5**0.05 = 1.0205.
    assert calibration.record_steps(WORKER, steps(100.0), FIT) == pytest.approx(1.5**0.05)


def test_twice_and_half_as_long_cancel() -> None:
    calibration = CostCalibration()
    for _ in range(50):
        calibration.record_steps(WORKER, steps(1.0), FIT)
    calibration.record_steps(WORKER, steps(1.2), FIT)
    # The second surprise is larger by what the first one taught: -log(1.2) - 0.05 * log(1.2), of which 1/20 counts.
    calibration.record_steps(WORKER, steps(1 / 1.2), FIT)
    assert math.log(calibration.factor(WORKER)) == pytest.approx(-(0.05**2) * math.log(1.2))


@pytest.mark.parametrize(("times_the_fit", "bound"), [(1000.0, MAX_FACTOR), (0.001, MIN_FACTOR)])
def test_the_factor_is_bounded(times_the_fit: float, bound: float) -> None:
    calibration = CostCalibration()
    for _ in range(500):
        calibration.record_steps(WORKER, steps(times_the_fit), FIT)
    assert calibration.factor(WORKER) == pytest.approx(bound)


@pytest.mark.parametrize("times_the_fit", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_teach_nothing(times_the_fit: float) -> None:
    calibration = CostCalibration()
    assert calibration.record_steps(WORKER, steps(times_the_fit), FIT) == 1.0
    # And they do not count as a receipt: the next one still weighs 1/2.
    assert calibration.record_steps(WORKER, steps(1.21), FIT) == pytest.approx(1.1)


def test_workers_do_not_teach_about_each_other() -> None:
    calibration = CostCalibration()
    calibration.record_steps(WORKER, steps(1.21), FIT)
    assert calibration.factor(WorkerWithDpRank(WorkerId(2))) == 1.0


def test_another_process_under_the_same_id_starts_anew() -> None:
    calibration = CostCalibration()
    calibration.record_steps(WORKER, steps(1.21), FIT)
    calibration.remove_worker(WORKER)
    assert calibration.factor(WORKER) == 1.0
    assert calibration.record_steps(WORKER, steps(1.21), FIT) == pytest.approx(1.1)
