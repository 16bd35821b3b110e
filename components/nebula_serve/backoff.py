"""How long a crashed process waits for its restart."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    first_delay_s: float = 0.5
    longest_delay_s: float = 10.0
    healthy_after_s: float = 30.0
    """A process that served this long is restarted as if it had never crashed."""
    max_failed_starts: int = 3
    """So many crashes in a row before a process was ever ready end the whole start."""


@dataclass(slots=True)
class Backoff:
    """Delays that double from crash to crash and start over after a time of health."""

    policy: RestartPolicy
    _next_delay_s: float = 0.0

    def record_crash(self, served_s: float) -> float:
        """Returns the delay before the restart. `served_s`: how long the process had been ready, 0 if it never was."""
        if self._next_delay_s == 0.0 or served_s >= self.policy.healthy_after_s:
            self._next_delay_s = self.policy.first_delay_s
        delay_s = min(self._next_delay_s, self.policy.longest_delay_s)
        self._next_delay_s = min(2 * delay_s, self.policy.longest_delay_s)
        return delay_s
