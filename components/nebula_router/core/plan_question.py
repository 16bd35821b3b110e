"""Everything that one placement depends on."""

from dataclasses import dataclass

from nebula_protocol.ids import DomainId, RequestId, WorkerId, WorkerWithDpRank
from nebula_protocol.layout import PromptLayout
from nebula_router.core.coverage import Coverage
from nebula_router.core.fleet import Fleet
from nebula_router.core.load_snapshot import LoadSnapshot


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """What the planner may use, and how sure it must be."""

    pic: bool = True
    """False: exact prefix caching only."""
    remote_reuse: bool = True
    """Copy segments from workers that have them."""
    join: bool = True
    """Wait for segments that are being computed for another request."""
    parallel_prefill: bool = True
    """Let helpers compute missing segments alone."""
    max_helpers: int = 6
    wait_slack_ratio: float = 1.0
    parallel_gain_ratio: float = 0.1
    """Helpers must save at least this share of the completion time: what they compute is approximate, and costs
    more."""
    indifference_ratio: float = 0.02
    """Workers whose scores differ by less than this share of the completion time are equally good: no fit is that
    exact. Among those the one with the least recent work is taken, so that work and cache contents spread."""
    told_candidates: int = 8
    """How many of the best workers the answer tells of; 0 where nobody reads that."""


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """`fleet`, `load` and `coverage` have the same workers in the same order."""

    request_id: RequestId
    domain_id: DomainId
    layout: PromptLayout
    coverage: Coverage
    fleet: Fleet
    load: LoadSnapshot
    settings: PlannerSettings = PlannerSettings()
    excluded: frozenset[WorkerWithDpRank] = frozenset()
    """Neither targets nor sources nor helpers."""
    only_target: WorkerId | None = None
    """The one worker that may be the target; sources and helpers are free. None: any worker."""
