"""What the connector remembers of a request in the engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vllm.v1.request import Request

from nebula_protocol.ids import Origin, RequestId
from nebula_protocol.plan import SegmentPlan
from nebula_protocol.tokens import as_token_array, token_bytes
from pic_worker.adapters.vllm.engine_wire import PrefillFacts, PrefillOrder, SegmentFact
from pic_worker.adapters.vllm.load_orders import PlannedLoad
from pic_worker.core.claim import Claim
from pic_worker.core.compute_work import Run, StepLedger
from pic_worker.core.recompute import Recompute
from pic_worker.core.store_entry import SegmentKey


@dataclass(slots=True, eq=False)
class SegmentTrack:
    """One segment of the order, from its look-up to its save."""

    plan: SegmentPlan
    key: SegmentKey
    token_bytes: bytes
    was_absent: bool = False
    tokens_differed: bool = False
    prefix_tokens: int = 0
    loaded_tokens: int = 0
    recomputed_tokens: int = 0
    origin: Origin | None = None
    is_settled: bool = False
    """It was offered to the store, or will not be."""

    def fact(self, *, is_stored: bool) -> SegmentFact:
        return SegmentFact(
            segment_hash=self.plan.segment_hash,
            start=self.plan.start,
            end=self.plan.end,
            loaded_tokens=self.loaded_tokens,
            prefix_tokens=self.prefix_tokens,
            recomputed_tokens=self.recomputed_tokens,
            was_absent=self.was_absent,
            tokens_differed=self.tokens_differed,
            origin=self.origin,
            is_stored=is_stored,
        )


@dataclass(slots=True, eq=False)
class TrackedRequest:
    """Told of nothing when the engine takes a request's blocks away: a new look-up is the sign of it."""

    request: Request
    order: PrefillOrder | None
    is_remote: bool
    """Its prompt is pulled from another engine."""
    segments: tuple[SegmentTrack, ...] = ()

    block_ids: list[int] = field(default_factory=list)
    """Empty until blocks are allocated, and again when they are taken away."""
    device_tokens: int = 0
    """Prefix found in the device tier when the blocks were allocated."""
    claim: Claim | None = None
    """What was loaded behind it."""
    recompute: Recompute | None = None
    injected: tuple[Run, ...] = ()
    """Tokens whose KV came from segments and stayed as it was."""
    num_recorded_blocks: int = 0
    """Leading blocks whose content is known to the mirror."""
    computed_tokens: int = 0
    """When the steps asked for so far are done."""
    unwritten: dict[tuple[int, bytes], int] = field(default_factory=dict)
    """Prefix blocks of unknown origin, and the step in which they were first seen."""

    admitted_device_tokens: int | None = None
    """At the first allocation; None before."""
    admitted_host_tokens: int = 0

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def prompt_tokens(self) -> int:
        return self.request.num_prompt_tokens

    @property
    def is_whole(self) -> bool:
        return self.computed_tokens >= self.prompt_tokens

    def lose_blocks(self) -> None:
        """The engine took the blocks away: all of it is computed or loaded anew."""
        self.block_ids = []
        self.device_tokens = self.num_recorded_blocks = self.computed_tokens = 0
        self.claim, self.recompute, self.injected = None, None, ()

    def admit(self, block_ids: Sequence[int], claim: Claim | None) -> None:
        """Blocks were allocated; behind the prefix, `claim` is loaded."""
        self.block_ids = list(block_ids)
        self.claim = claim
        prefix_tokens = self.device_tokens if claim is None else claim.blocks_end
        if self.admitted_device_tokens is None:
            self.admitted_device_tokens = self.device_tokens
            self.admitted_host_tokens = prefix_tokens - self.device_tokens
            for segment in self.segments:
                plan = segment.plan
                segment.prefix_tokens = min(max(prefix_tokens - plan.start, 0), plan.end - plan.start)

    def note_load(self, load: PlannedLoad) -> None:
        """The claim's segments are injected, but for what is computed again."""
        claim, recompute = load.claim, load.recompute
        self.recompute = recompute
        injected: list[Run] = []
        for use, recomputed_tokens in zip(claim.uses, recompute.use_tokens, strict=True):
            segment = self.segments[use.index]
            segment.is_settled = True
            if not segment.loaded_tokens:
                segment.loaded_tokens = use.end - use.start
                segment.recomputed_tokens = recomputed_tokens
                segment.origin = use.stored.origin
            if recomputed_tokens < use.end - use.start:
                leading = 0 if recompute.selected_tokens else recomputed_tokens
                injected.append(Run(use.start + leading, use.end))
        self.injected = tuple(injected)

    def recompute_pairs(self, num_tokens: int) -> float:
        """Attention pairs of `num_tokens` of the load's tokens, which count alike."""
        if self.recompute is None or not num_tokens:
            return 0.0
        return self.recompute.attention_pairs * num_tokens / self.recompute.num_tokens

    def facts(self, *, queued_s: float, ledger: StepLedger, is_stored: Callable[[SegmentTrack], bool]) -> PrefillFacts:
        tracks = {segment.plan: segment for segment in self.segments}
        facts: list[SegmentFact] = []
        for plan in self.order.segments if self.order is not None else ():
            segment = tracks.get(plan)
            facts.append(segment.fact(is_stored=is_stored(segment)) if segment is not None else _bare_fact(plan))
        return PrefillFacts(
            # The engine may have given the request a longer name of its own.
            request_id=self.order.request_id if self.order is not None else RequestId(self.request_id),
            prompt_tokens=self.prompt_tokens,
            device_prefix_tokens=self.admitted_device_tokens or 0,
            host_prefix_tokens=self.admitted_host_tokens,
            segments=tuple(facts),
            queued_s=queued_s,
            computed_tokens=ledger.computed_tokens,
            attention_pairs=ledger.attention_pairs,
            num_steps=ledger.num_steps,
            step_tokens=ledger.step_tokens,
            step_pairs=ledger.step_pairs,
            step_s=ledger.step_s,
            is_whole=self.is_whole,
        )


def track_segments(request: Request, order: PrefillOrder | None) -> tuple[SegmentTrack, ...]:
    """The order's segments, as far as they lie in the prompt one behind another.

    Raises:
        TokenIdsError: the prompt's token ids are none.
    """
    prompt = request.prompt_token_ids
    if order is None or not order.segments or prompt is None:
        return ()
    tokens = as_token_array(prompt)
    tracks: list[SegmentTrack] = []
    end = 0
    for plan in order.segments:
        if not end <= plan.start < plan.end <= len(tokens):
            continue
        end = plan.end
        key = SegmentKey(order.domain_id, plan.segment_hash)
        tracks.append(SegmentTrack(plan, key, token_bytes(tokens[plan.start : plan.end])))
    return tuple(tracks)


def _bare_fact(plan: SegmentPlan) -> SegmentFact:
    """Of a segment that does not fit the prompt."""
    return SegmentFact(segment_hash=plan.segment_hash, start=plan.start, end=plan.end)
