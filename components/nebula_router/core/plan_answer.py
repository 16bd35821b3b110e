"""A placement: the plan for the target, and all that the router must record when it dispatches it."""

from dataclasses import dataclass

from nebula_protocol.events import Candidate
from nebula_protocol.ids import WorkerWithDpRank
from nebula_protocol.plan import Plan
from nebula_router.core.queued_work import QueuedWork


@dataclass(frozen=True, slots=True)
class HelperWork:
    """Segments that a helper computes alone for this request."""

    worker: WorkerWithDpRank
    segment_indices: tuple[int, ...]
    """Into the plan's segments, in the order in which they are to be computed."""
    work: QueuedWork
    ready_at_s: float
    """When the helper should have all of them."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """KV that will be copied to the target."""

    source: WorkerWithDpRank
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    plan: Plan
    helpers: tuple[HelperWork, ...]
    candidates: tuple[Candidate, ...]
    """The best few workers, chosen one first."""
    work: QueuedWork
    """At the target."""
    runnable_at_s: float
    """When the target's step may begin."""
    copied_at_s: float
    """When the last copy is there."""
    completion_at_s: float
    computed_segments: tuple[int, ...]
    """Segments that the target will have at `completion_at_s` since it computes them in context. Not the one at offset
    0: it is its own prefix, and workers keep it as that."""
    copied_segments: tuple[int, ...]
    """Segments that the target will have at `copied_at_s` since it keeps a copy."""
    transfers: tuple[Transfer, ...]
