"""When a moment counts as reached."""

# A driver that sleeps `deadline - now` may wake a rounding error before the deadline.
_SLACK_S = 1e-9


def is_due(deadline_s: float, now_s: float) -> bool:
    return now_s >= deadline_s - _SLACK_S
