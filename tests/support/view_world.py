"""Messages of workers and deeds of the router, short enough to fill tests of the merged view."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from support.placement_case import BLOCK, round_card, segment_hash, worker

from nebula_protocol.card import WorkerCard
from nebula_protocol.events import (
    BlockEntry,
    BlocksRemoved,
    BlocksStored,
    HostBlocksRemoved,
    HostBlocksStored,
    KvEvent,
    KvEventData,
    PicEvent,
    PicEventData,
    SegmentEntry,
    SegmentRemoved,
    SegmentStored,
    StoredBlock,
    WorkerKvEvent,
    WorkerPicEvents,
)
from nebula_protocol.ids import (
    BlockHash,
    DpRank,
    EngineBlockHash,
    EventId,
    Origin,
    RemovalReason,
    RequestId,
    WorkerEpoch,
    WorkerId,
    WorkerWithDpRank,
)
from nebula_protocol.layout import Mark, PromptLayout, Segment
from nebula_protocol.messages import StateChunk
from nebula_protocol.plan import Estimate, Plan, SegmentPlan, Source
from nebula_protocol.receipt import FallbackReason, Receipt, SegmentOutcome, StepWork, Timing
from nebula_protocol.subjects import Topic
from nebula_router.core.coverage import Coverage
from nebula_router.core.plan_answer import HelperWork, PlanAnswer
from nebula_router.core.queued_work import QueuedWork
from nebula_router.core.view import ClusterView

TTL_S = 5.0
SEGMENT_TOKENS = 100
DOMAIN_ID = round_card(1).domain.domain_id
EPOCH = WorkerEpoch(1)
NO_WORK = QueuedWork(step_tokens=0, attention_pairs=0.0)
NOW_S = 100.0


def new_view(num_workers: int = 2, *, max_entries: int = 10_000, **card_changes: object) -> ClusterView:
    """Workers 1 to `num_workers` have published nothing yet."""
    view = ClusterView(max_entries=max_entries, max_holders=256, ttl_s=TTL_S)
    for worker_id in range(1, num_workers + 1):
        view.add_worker(round_card(worker_id, **card_changes))
    return view


def prompt(blocks: Sequence[int] = (), segments: Sequence[object] = (), *, block_tokens: int = BLOCK) -> PromptLayout:
    """Blocks by the hashes of their tokens, segments of 100 tokens by name."""
    return PromptLayout(
        tokens=np.zeros(0, dtype=np.uint32),
        block_size_tokens=block_tokens,
        block_hashes=np.array(blocks, dtype=np.uint64),
        segments=tuple(
            Segment(at * SEGMENT_TOKENS, (at + 1) * SEGMENT_TOKENS, segment_hash(name), Mark.SPAN)
            for at, name in enumerate(segments)
        ),
    )


def cover(view: ClusterView, layout: PromptLayout, now_s: float = NOW_S) -> Coverage:
    """For all holders, ascending."""
    return view.coverage(layout, DOMAIN_ID, tuple(profile.worker for profile in view.profiles()), now_s)


def device_blocks(view: ClusterView, blocks: Sequence[int], now_s: float = NOW_S) -> list[int]:
    """By holder, ascending."""
    return [int(tokens) // BLOCK for tokens in cover(view, prompt(blocks), now_s).prefix_device_tokens]


def tier_blocks(view: ClusterView, blocks: Sequence[int], now_s: float = NOW_S) -> list[int]:
    """As `device_blocks`, over both tiers."""
    return [int(tokens) // BLOCK for tokens in cover(view, prompt(blocks), now_s).prefix_tokens]


def segment_states(view: ClusterView, name: object, now_s: float = NOW_S) -> list[int]:
    """By holder, ascending."""
    return [int(state) for state in cover(view, prompt(segments=[name]), now_s).segment_states[0]]


@dataclass(slots=True)
class Publisher:
    """One scheduler's events, numbered as the worker does."""

    worker_id: int = 1
    dp_rank: int = 0
    epoch: int = 1
    last_kv_id: int = -1
    last_pic_id: int = -1

    def stored(
        self,
        names: Sequence[int],
        blocks: Sequence[int] | None = None,
        parent: int | None = None,
        storage_tier: str = "device",
    ) -> WorkerKvEvent:
        """Blocks are named by numbers; the hashes of their tokens are those numbers too, unless given."""
        hashes = names if blocks is None else blocks
        stored = tuple(
            StoredBlock(block_hash=name, tokens_hash=tokens) for name, tokens in zip(names, hashes, strict=True)
        )
        return self._kv(KvEventData(stored=BlocksStored(parent_hash=parent, blocks=stored)), storage_tier)

    def removed(self, names: Sequence[int], storage_tier: str = "device") -> WorkerKvEvent:
        return self._kv(KvEventData(removed=BlocksRemoved(block_hashes=tuple(names))), storage_tier)

    def cleared(self) -> WorkerKvEvent:
        return self._kv("cleared", "device")

    def host_stored(self, names: Iterable[int]) -> WorkerPicEvents:
        return self.pic(HostBlocksStored(block_hashes=tuple(map(EngineBlockHash, names))))

    def host_removed(self, names: Iterable[int], reason: RemovalReason = RemovalReason.CAPACITY) -> WorkerPicEvents:
        return self.pic(HostBlocksRemoved(block_hashes=tuple(map(EngineBlockHash, names)), reason=reason))

    def segment_stored(self, name: object) -> WorkerPicEvents:
        return self.pic(
            SegmentStored(
                segment_hash=segment_hash(name),
                domain_id=DOMAIN_ID,
                num_tokens=SEGMENT_TOKENS,
                origin=Origin.IN_CONTEXT,
            )
        )

    def segment_removed(self, name: object, reason: RemovalReason = RemovalReason.CAPACITY) -> WorkerPicEvents:
        return self.pic(SegmentRemoved(segment_hash=segment_hash(name), domain_id=DOMAIN_ID, reason=reason))

    def pic(self, *datas: PicEventData) -> WorkerPicEvents:
        events = []
        for data in datas:
            self.last_pic_id += 1
            events.append(PicEvent(event_id=EventId(self.last_pic_id), dp_rank=DpRank(self.dp_rank), data=data))
        return WorkerPicEvents(worker_id=WorkerId(self.worker_id), epoch=WorkerEpoch(self.epoch), events=tuple(events))

    def state(
        self, blocks: Sequence[BlockEntry] = (), segments: Sequence[object] = (), card: WorkerCard | None = None
    ) -> list[StateChunk]:
        """The full state as of the events so far, in one chunk."""
        return [
            StateChunk(
                snapshot_id=1,
                index=0,
                last=True,
                card=card or round_card(self.worker_id, epoch=WorkerEpoch(self.epoch)),
                dp_rank=DpRank(self.dp_rank),
                last_event_ids=self.last_event_ids(),
                blocks=tuple(blocks),
                segments=tuple(
                    SegmentEntry(segment_hash(name), DOMAIN_ID, SEGMENT_TOKENS, Origin.ALONE) for name in segments
                ),
            )
        ]

    def last_event_ids(self) -> dict[Topic, EventId]:
        return {Topic.KV_EVENTS: EventId(self.last_kv_id), Topic.PIC_EVENTS: EventId(self.last_pic_id)}

    def _kv(self, data: KvEventData | str, storage_tier: str) -> WorkerKvEvent:
        self.last_kv_id += 1
        event = KvEvent(event_id=EventId(self.last_kv_id), dp_rank=DpRank(self.dp_rank), data=data)  # type: ignore[arg-type]
        return WorkerKvEvent(worker_id=WorkerId(self.worker_id), storage_tier=storage_tier, event=event)


def entry(name: int, parent: int | None, tiers: int = 1, tokens: int | None = None) -> BlockEntry:
    """A block of a full state; the hash of its tokens is its name unless given."""
    parent_hash = None if parent is None else EngineBlockHash(parent)
    return BlockEntry(EngineBlockHash(name), parent_hash, BlockHash(name if tokens is None else tokens), tiers)


@dataclass(slots=True)
class Dispatch:
    """One decision: what the target and the helpers will have, by numbers of segments."""

    layout: PromptLayout
    target: int = 1
    request_id: str = "request"
    computed: Sequence[int] = ()
    copied: Sequence[int] = ()
    helpers: dict[int, Sequence[int]] = field(default_factory=dict)
    sources: dict[int, tuple[Source, int]] = field(default_factory=dict)
    """By segment, what was planned other than COMPUTE, and the worker it comes from."""
    runnable_at_s: float = NOW_S + 1
    ready_at_s: float = NOW_S + 2

    def answer(self) -> PlanAnswer:
        return PlanAnswer(
            plan=self.plan(),
            helpers=tuple(
                HelperWork(worker(helper), tuple(segments), NO_WORK, self.runnable_at_s)
                for helper, segments in self.helpers.items()
            ),
            candidates=(),
            work=NO_WORK,
            runnable_at_s=self.runnable_at_s,
            copied_at_s=self.runnable_at_s,
            completion_at_s=self.ready_at_s,
            computed_segments=tuple(self.computed),
            copied_segments=tuple(self.copied),
            transfers=(),
        )

    def plan(self) -> Plan:
        return Plan(
            request_id=RequestId(self.request_id),
            domain_id=DOMAIN_ID,
            target=worker(self.target),
            segments=tuple(
                SegmentPlan(
                    start=segment.start,
                    end=segment.end,
                    segment_hash=segment.segment_hash,
                    source=self.sources[at][0] if at in self.sources else Source.COMPUTE,
                    from_worker=worker(self.sources[at][1]) if at in self.sources else None,
                )
                for at, segment in enumerate(self.layout.segments)
            ),
            prefix_hit_tokens=0,
            wait_budget_s=0.0,
            estimate=Estimate(free_in_s=0.0, arrive_in_s=0.0, compute_s=0.0, completion_s=0.0),
        )

    def record(self, view: ClusterView, now_s: float = NOW_S) -> None:
        cover(view, self.layout, now_s)
        view.record_dispatch(self.layout, self.answer())

    def receipt(
        self,
        stored: Iterable[int] = (),
        fallbacks: dict[int, FallbackReason] | None = None,
        *,
        by: WorkerWithDpRank | None = None,
        epoch: int = 1,
        last_event_ids: dict[Topic, EventId] | None = None,
    ) -> Receipt:
        kept, reasons = frozenset(stored), fallbacks or {}
        outcomes = tuple(
            SegmentOutcome(
                start=planned.start,
                end=planned.end,
                segment_hash=planned.segment_hash,
                planned=planned.source,
                done=Source.COMPUTE if at in reasons else planned.source,
                fallback=reasons.get(at),
                stored=at in kept,
            )
            for at, planned in enumerate(self.plan().segments)
        )
        return Receipt(
            request_id=RequestId(self.request_id),
            worker=by or worker(self.target),
            epoch=WorkerEpoch(epoch),
            prompt_tokens=0,
            prefix_hit_tokens=0,
            segment_hit_tokens=0,
            local_hit_tokens=0,
            fetched_hit_tokens=0,
            recomputed_tokens=0,
            computed_tokens=0,
            invalid_hit_tokens=0,
            segments=outcomes,
            timing=Timing(queue_s=0.0, wait_s=0.0, compute_s=0.0, total_s=0.0),
            work=StepWork(
                computed_tokens=0, attention_pairs=0.0, num_steps=0, step_tokens=0, step_pairs=0.0, step_s=0.0
            ),
            last_event_ids=last_event_ids or {},
        )
