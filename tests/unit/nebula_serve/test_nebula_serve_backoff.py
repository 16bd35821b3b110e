"""How long a crashed process waits."""

from nebula_serve.backoff import Backoff, RestartPolicy

POLICY = RestartPolicy(first_delay_s=0.5, longest_delay_s=10.0, healthy_after_s=30.0)


def test_delays_double_up_to_the_longest() -> None:
    backoff = Backoff(POLICY)
    # 0.5 doubled: 1, 2, 4, 8, then 16 > 10
    assert [backoff.record_crash(served_s=0.0) for _ in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_a_time_of_health_starts_the_delays_over() -> None:
    backoff = Backoff(POLICY)
    for _ in range(4):
        backoff.record_crash(served_s=0.0)
    assert backoff.record_crash(served_s=30.0) == 0.5
    assert backoff.record_crash(served_s=0.0) == 1.0


def test_less_than_the_time_of_health_does_not() -> None:
    backoff = Backoff(POLICY)
    backoff.record_crash(served_s=0.0)
    assert backoff.record_crash(served_s=29.9) == 1.0
