"""Seeded noise on step times."""

import math
from statistics import mean, stdev

import pytest

from nebula_bench.cluster.step_noise import NoisyStepCost, StepNoise
from pic_worker.calibration.tables import load_table
from pic_worker.core.step_cost import StepCost

TABLE = load_table("Qwen3-14B", "bf16", "h100_sxm")


def factors(seed: int, worker: int, count: int) -> list[float]:
    noise = StepNoise(seed, worker, worker_ratio=0.02, step_ratio=0.03)
    drawn = []
    for _ in range(count):
        noise.draw()
        drawn.append(noise.factor)
    return drawn


def test_a_step_takes_the_tables_time_times_the_factor() -> None:
    noise = StepNoise(1, 0, worker_ratio=0.0, step_ratio=0.03)
    cost = NoisyStepCost(table=TABLE, time_factor=1.15, step_overhead_s=0.005, noise=noise)
    noise.draw()
    assert cost.step_s(512, 512 * 256) == pytest.approx(
        StepCost(TABLE, 1.15, 0.005).step_s(512, 512 * 256) * noise.factor
    )


def test_between_steps_a_worker_expects_its_mean() -> None:
    noise = StepNoise(1, 0, worker_ratio=0.02, step_ratio=0.03)
    before = noise.factor
    noise.draw()
    assert noise.factor != before
    noise.rest()
    assert noise.factor == before


def test_the_same_seed_draws_the_same_and_workers_differ() -> None:
    assert factors(1, 0, 5) == factors(1, 0, 5)
    assert factors(1, 0, 5) != factors(1, 1, 5)
    assert factors(1, 0, 5) != factors(2, 0, 5)


def test_factors_scatter_as_much_as_they_were_asked_to() -> None:
    logs = [math.log(factor) for factor in factors(1, 0, 2000)]
    # The standard error of 2,000 samples' deviation is 0.03 / sqrt(4000) = 0.0005.
    assert stdev(logs) == pytest.approx(0.03, abs=0.002)
    # The worker's own mean: within four deviations of 2 %.
    assert abs(mean(logs)) < 0.08


def test_without_noise_nothing_is_changed() -> None:
    noise = StepNoise(1, 0, worker_ratio=0.0, step_ratio=0.0)
    noise.draw()
    assert noise.factor == 1.0
