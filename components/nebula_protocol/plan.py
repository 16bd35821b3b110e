"""The plan: what the router decided for one request. It travels in `extra_args` to the worker."""

from enum import StrEnum

import msgspec

from nebula_protocol.errors import UnsupportedVersionError
from nebula_protocol.ids import DomainId, RequestId, SegmentHash, WorkerWithDpRank

PLAN_VERSION = 1
PLAN_KEY = "nebula_plan"
"""Key inside the request's `extra_args`."""


class Source(StrEnum):
    """Where a segment's KV comes from."""

    LOCAL = "local"
    """The target has it, or will have it before this request's turn."""
    FETCH = "fetch"
    """Another worker has it; its bytes are copied."""
    JOIN = "join"
    """Being computed or fetched at a worker for another request right now; wait for that and copy it."""
    COMPUTE = "compute"
    """Computed by the target inside this request: exact."""
    COMPUTE_AT = "compute_at"
    """Computed alone by a helper for this request, at the same time as the target works, then copied."""


class SegmentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One segment's tokens [start, end) and its source."""

    start: int
    end: int
    segment_hash: SegmentHash
    source: Source
    from_worker: WorkerWithDpRank | None = None
    """The other side of FETCH, JOIN and COMPUTE_AT. JOIN may name the target itself."""
    keep: bool = True
    """Whether the target keeps a copy that it fetched."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """The prediction behind the choice, seconds from the decision; compared with the receipt afterwards."""

    free_in_s: float
    """Until the target can start on this request."""
    arrive_in_s: float
    """Until the last remote segment has arrived; 0 without any."""
    compute_s: float
    completion_s: float


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    version: int = PLAN_VERSION
    request_id: RequestId
    domain_id: DomainId
    target: WorkerWithDpRank
    segments: tuple[SegmentPlan, ...]
    prefix_hit_tokens: int
    """Prefix tokens that the router expects the target to have."""
    wait_budget_s: float
    """How long the target may wait for remote segments, from when it receives the plan; then it computes."""
    estimate: Estimate
    hands_over: bool = True
    """Whether a decode worker will pull the prompt's KV; if not, the target need not hold it."""
    pic: bool = True
    """False: exact prefix caching only; segments are neither reused nor kept for this request."""


class HelperTask(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a helper to compute segments alone and keep them for `for_request` to fetch.

    The request's token ids are the segments' tokens one behind another.
    """

    version: int = PLAN_VERSION
    for_request: RequestId
    domain_id: DomainId
    segments: tuple[tuple[SegmentHash, int], ...]
    """(hash, number of tokens) in the order of the tokens."""


HELPER_TASK_KEY = "nebula_helper_task"
"""Key inside a helper request's `extra_args`."""


def check_plan_version(plan: Plan) -> Plan:
    """The plan itself.

    Raises:
        UnsupportedVersionError: written by a router of another version.
    """
    if plan.version != PLAN_VERSION:
        raise UnsupportedVersionError("plan", plan.version, PLAN_VERSION)
    return plan
