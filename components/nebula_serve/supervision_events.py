"""What happens before and while processes are supervised, for the log."""

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineChosen:
    engine: str
    reason: str
    model: str


@dataclass(frozen=True, slots=True)
class ModelBeingMade:
    step: str


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    process: str
    pid: int


@dataclass(frozen=True, slots=True)
class ProcessReady:
    process: str
    start_s: float


@dataclass(frozen=True, slots=True)
class ProcessCrashed:
    process: str
    outcome: str
    restart_in_s: float


@dataclass(frozen=True, slots=True)
class ProcessStopped:
    process: str
    outcome: str


@dataclass(frozen=True, slots=True)
class ProcessKilled:
    """It did not stop in time."""

    process: str
    after_s: float


@dataclass(frozen=True, slots=True)
class StillWaiting:
    processes: tuple[str, ...]
    waited_s: float


@dataclass(frozen=True, slots=True)
class Stopping:
    reason: str


@dataclass(frozen=True, slots=True)
class RunInfoNotWritten:
    """Other commands now see an older state of this run."""

    path: str
    reason: str


SupervisionEvent = (
    EngineChosen
    | ModelBeingMade
    | ProcessStarted
    | ProcessReady
    | ProcessCrashed
    | ProcessStopped
    | ProcessKilled
    | StillWaiting
    | Stopping
    | RunInfoNotWritten
)


def describe_exit(status: int) -> str:
    """An exit status in words; negative ones are signals."""
    if status >= 0:
        return f"exited with code {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
