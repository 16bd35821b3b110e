"""What the engine remembers of a live request."""

from dataclasses import dataclass, field
from enum import Enum

from nebula_protocol.fusion import Fusion
from nebula_protocol.ids import Origin, RequestId
from nebula_protocol.plan import SegmentPlan, Source
from nebula_protocol.receipt import FallbackReason
from nebula_protocol.tokens import token_bytes
from pic_worker.core.block_chain import BlockChain
from pic_worker.core.compute_work import ComputeRuns, ComputeWork, Run
from pic_worker.core.deadline import is_due
from pic_worker.core.device_pool import BlockTable
from pic_worker.core.engine_request import EngineRequest, HelperRequest
from pic_worker.core.prefix_cache import PromptBlocks
from pic_worker.core.store_entry import SegmentKey
from pic_worker.core.stream import Stream


class Standing(Enum):
    """Where a segment's KV is, as far as the request knows."""

    LOOK_UP = "look_up"
    """Not known to be anywhere; the store is asked when the request's turn comes."""
    FETCHING = "fetching"
    JOINED = "joined"
    """An earlier request here will store it."""
    PINNED = "pinned"
    """In the store, pinned for this request."""
    STREAMING = "streaming"
    """Its turn came while it is still arriving: the step's layers meet it as it comes."""
    STAGED = "staged"
    """Arrived from a peer and not stored; the request itself keeps it until it is loaded."""
    DONE = "done"
    """Loaded, being computed, or covered by the prefix: nothing to wait for or to let go."""


@dataclass(slots=True, eq=False)
class SegmentState:
    """One segment of a prompt, from its plan to its outcome."""

    plan: SegmentPlan
    key: SegmentKey
    token_bytes: bytes
    standing: Standing = Standing.LOOK_UP
    came_by: Source = Source.LOCAL
    """How its KV came, once it is pinned or staged."""
    origin: Origin | None = None
    fallback: FallbackReason | None = None
    """Why it will be computed, unless the store has it when the turn comes."""
    is_producing: bool = False
    """Registered as in flight at this worker."""
    prefix_tokens: int = 0
    loaded: tuple[Run, ...] = ()
    """Decided at the turn: positions whose KV is loaded and kept; none when it is computed or is all prefix."""
    recomputed_tokens: int = 0
    stream: Stream | None = None
    """When a fetched copy arrives, as soon as that is known."""
    is_broken: bool = False
    """A step has used it as it came, and it did not come to its end."""
    is_complete: bool = False
    """Computed to its last token, and offered to the store."""

    @property
    def hit_tokens(self) -> int:
        """Tokens whose KV was reused, prefix excluded, those computed again included."""
        return self.recomputed_tokens + sum(run.end - run.start for run in self.loaded)

    @property
    def is_covered(self) -> bool:
        """Whether the prefix holds all of it."""
        return self.prefix_tokens == self.plan.end - self.plan.start

    @property
    def is_waiting(self) -> bool:
        return self.standing is Standing.FETCHING or self.standing is Standing.JOINED


@dataclass(slots=True, eq=False)
class PromptState:
    """A prompt from submission until its KV is pulled."""

    request: EngineRequest
    arrival_order: int
    submitted_at_s: float
    deadline_s: float
    """Until then its turn waits for segments on their way."""
    fusion: Fusion
    chain: BlockChain
    segments: list[SegmentState]
    num_waiting: int = 0
    """Segments on their way."""
    usable_at_s: float | None = None
    """When a step may begin although segments are still arriving; None while that is not known of all."""
    ready_at_s: float | None = None
    """When the last segment on its way had arrived or failed."""
    is_settled: bool = False
    """Its turn came: what is reused is decided."""
    blocks: PromptBlocks | None = None
    work: ComputeWork = field(default_factory=lambda: ComputeWork(ComputeRuns(())))

    @property
    def request_id(self) -> RequestId:
        return self.request.request_id

    @property
    def num_tokens(self) -> int:
        return len(self.request.tokens)

    def expects_reuse(self, segment: SegmentState) -> bool:
        """Whether the router planned on KV that exists or is made elsewhere."""
        return self.request.has_plan and segment.plan.source is not Source.COMPUTE

    def is_blocked(self, now_s: float) -> bool:
        """Whether its turn, if it were now, would wait for segments."""
        return self.num_waiting > 0 and not is_due(self.turn_at_s, now_s)

    @property
    def turn_at_s(self) -> float:
        """Until then its turn waits for segments on their way."""
        return self.deadline_s if self.usable_at_s is None else min(self.deadline_s, self.usable_at_s)

    @property
    def is_streaming(self) -> bool:
        """Whether a step with it needs KV that is still arriving."""
        return any(segment.standing is Standing.STREAMING for segment in self.segments)

    def record_arrival(self, now_s: float) -> None:
        """One segment less is on its way."""
        self.num_waiting -= 1
        if not self.num_waiting and self.ready_at_s is None:
            self.ready_at_s = min(now_s, self.deadline_s)


@dataclass(slots=True, eq=False)
class HelperState:
    """Segments that are computed alone for another worker's prompt."""

    request: HelperRequest
    arrival_order: int
    submitted_at_s: float
    producing: list[SegmentKey] = field(default_factory=list)
    """Segments registered as in flight, each once."""
    to_compute: list[int] = field(default_factory=list)
    """Indices of the segments that were missing when its turn came, one for each run."""
    num_stored: int = 0
    """Of those, how many are finished."""
    table: BlockTable | None = None
    work: ComputeWork = field(default_factory=lambda: ComputeWork(ComputeRuns(())))

    @property
    def request_id(self) -> RequestId:
        return self.request.request_id

    @property
    def num_tokens(self) -> int:
        return len(self.request.tokens)

    def segment_key(self, index: int) -> SegmentKey:
        return SegmentKey(self.request.domain_id, self.request.segments[index][0])

    def segment_token_bytes(self, index: int) -> bytes:
        start = sum(num_tokens for _, num_tokens in self.request.segments[:index])
        return token_bytes(self.request.tokens[start : start + self.request.segments[index][1]])


EngineJob = PromptState | HelperState


def segment_states(request: EngineRequest) -> list[SegmentState]:
    """Fresh states of a prompt's segments."""
    return [
        SegmentState(
            plan=plan,
            key=SegmentKey(request.domain_id, plan.segment_hash),
            token_bytes=token_bytes(request.tokens[plan.start : plan.end]),
        )
        for plan in request.segments
    ]
