"""One iteration of the engine: who computes how much in it, and how long it takes."""

from dataclasses import dataclass

from nebula_protocol.ids import RequestId
from pic_worker.core.effects import NOTHING, Effects


@dataclass(frozen=True, slots=True)
class StepShare:
    """One request's part in a step."""

    request_id: RequestId
    num_tokens: int
    """The probe of a fusion included, in tokens that take as long."""
    attention_pairs: float
    load_s: float
    """Bringing reused KV into the device tier; not 0 only in the request's first step."""
    is_helper: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    step_id: int
    shares: tuple[StepShare, ...]
    num_tokens: int
    attention_pairs: float
    load_s: float
    duration_s: float
    """All of it: table, overhead, and what of the loads computing does not hide."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The answer to `next_step`: the step to wait for, or None when nothing can run now."""

    step: StepPlan | None
    effects: Effects = NOTHING
