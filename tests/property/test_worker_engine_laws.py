"""Whatever happens in whatever order: sums hold, events tell the state, nothing leaks."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.engine_world import (
    BLOCK,
    NUM_LAYERS,
    OTHER_PEER,
    OWN,
    PEER,
    TOKEN_S,
    EngineWorld,
    fetch_of,
    helper,
    join,
    passage,
    planned,
    unplanned,
)

from nebula_protocol.cost import attention_pairs
from nebula_protocol.events import (
    HostBlocksRemoved,
    HostBlocksStored,
    PicEvent,
    SegmentRemoved,
    SegmentStored,
    StoreCleared,
)
from nebula_protocol.fusion import FULL_FUSION, NO_FUSION, PROBE_LAYERS, Fusion, cacheblend, legolink
from nebula_protocol.hashing import hash_segment
from nebula_protocol.ids import EngineBlockHash, Origin, RequestId, SegmentHash, WorkerWithDpRank
from nebula_protocol.messages import FetchedSegment
from nebula_protocol.plan import SegmentPlan, Source
from nebula_protocol.receipt import FallbackReason, Receipt
from nebula_protocol.subjects import Topic
from nebula_protocol.tokens import TokenArray, token_bytes
from pic_worker.core.effects import KvRemoved, KvStored, TicketId, WorkerEvent
from pic_worker.core.step_plan import StepPlan

PASSAGES = [passage(number, 4 + 3 * number) for number in range(1, 6)]
DEVICE_TOKENS, STORE_TOKENS = 96, 64

prompts = st.lists(st.integers(0, len(PASSAGES) - 1), min_size=1, max_size=4)
workers = st.sampled_from([OWN, PEER, OTHER_PEER, None])
ways_to_plan = st.lists(st.tuples(st.sampled_from(list(Source)), workers, st.booleans()), min_size=4, max_size=4)
fusions = st.sampled_from([None, None, legolink(0), NO_FUSION, cacheblend(0.15), cacheblend(0.6), FULL_FUSION])
failures = st.sampled_from(
    [FallbackReason.SOURCE_GONE, FallbackReason.LATE, FallbackReason.NOT_THERE, FallbackReason.TOKENS_DIFFER]
)


class Replica:
    """What a reader of the events knows."""

    def __init__(self) -> None:
        self.device: set[EngineBlockHash] = set()
        self.host: set[EngineBlockHash] = set()
        self.segments: dict[SegmentHash, Origin] = {}
        self.next_id: dict[Topic, int] = {}

    def apply(self, event: WorkerEvent) -> None:
        topic = Topic.PIC_EVENTS if isinstance(event, PicEvent) else Topic.KV_EVENTS
        assert event.event_id == self.next_id.get(topic, event.event_id)
        self.next_id[topic] = event.event_id + 1
        match event:
            case KvStored():
                assert not self.device & set(event.block_hashes)
                self.device |= set(event.block_hashes)
            case KvRemoved():
                assert self.device >= set(event.block_hashes)
                self.device -= set(event.block_hashes)
            case PicEvent():
                self.apply_to_store(event)

    def apply_to_store(self, event: PicEvent) -> None:
        match event.data:
            case HostBlocksStored(block_hashes=hashes):
                assert not self.host & set(hashes)
                self.host |= set(hashes)
            case HostBlocksRemoved(block_hashes=hashes):
                assert self.host >= set(hashes)
                self.host -= set(hashes)
            case SegmentStored(segment_hash=segment_hash, origin=origin):
                assert self.segments.get(segment_hash, Origin.ALONE) is not Origin.IN_CONTEXT
                self.segments[segment_hash] = origin
            case SegmentRemoved(segment_hash=segment_hash):
                del self.segments[segment_hash]
            case StoreCleared():
                self.host.clear()
                self.segments.clear()


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = EngineWorld(
            device_capacity_tokens=DEVICE_TOKENS,
            store_capacity_tokens=STORE_TOKENS,
            max_step_tokens=24,
            max_running=3,
            helper_patience_s=0.05,
        )
        self.replica = Replica()
        self.num_seen_events = 0
        self.num_seen_fetches = 0
        self.fetching: list[tuple[RequestId, SegmentHash]] = []
        self.live: dict[str, float] = {}
        """Request ids with the time of submission."""
        self.tickets: list[TicketId] = []
        self.in_flight: StepPlan | None = None
        self.num_requests = 0
        self.num_checked = 0

    def next_id(self) -> str:
        self.num_requests += 1
        return str(self.num_requests)

    # ---- what happens ----

    @rule(
        numbers=prompts,
        tail=st.integers(1, 9),
        ways=ways_to_plan,
        budget=st.floats(0, 1),
        hold=st.booleans(),
        fusion=fusions,
    )
    def submit_with_a_plan(
        self,
        numbers: Sequence[int],
        tail: int,
        ways: Sequence[tuple[Source, WorkerWithDpRank | None, bool]],
        budget: float,
        hold: bool,
        fusion: Fusion | None,
    ) -> None:
        tokens, spans = prompt_of(numbers, tail)
        segments = tuple(
            SegmentPlan(
                start=start,
                end=end,
                segment_hash=hash_segment(tokens[start:end]),
                source=source,
                from_worker=worker,
                keep=keep,
            )
            for (start, end), (source, worker, keep) in zip(spans, ways, strict=False)
        )
        request_id = self.next_id()
        self.live[request_id] = self.world.now_s
        request = planned(
            request_id,
            tokens,
            segments,
            wait_budget_s=budget,
            expected_prefix_tokens=len(tokens) // 2,
            hold_prompt=hold,
        )
        self.world.submit(replace(request, fusion=fusion))

    @rule(numbers=prompts, tail=st.integers(1, 9), hold=st.booleans(), fusion=fusions)
    def submit_without_a_plan(self, numbers: Sequence[int], tail: int, hold: bool, fusion: Fusion | None) -> None:
        tokens, spans = prompt_of(numbers, tail)
        request_id = self.next_id()
        self.live[request_id] = self.world.now_s
        self.world.submit(replace(unplanned(request_id, tokens, spans, hold_prompt=hold), fusion=fusion))

    @rule(numbers=prompts)
    def submit_a_helper(self, numbers: Sequence[int]) -> None:
        request_id = self.next_id()
        self.live[request_id] = self.world.now_s
        self.world.submit(helper(request_id, *(PASSAGES[number] for number in numbers)))

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def begin_step(self) -> None:
        self.in_flight = self.world.begin_step()

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def end_step(self) -> None:
        if self.in_flight is not None:
            step, self.in_flight = self.in_flight, None
            self.world.end_step(step)

    @precondition(lambda self: self.fetching)
    @rule(data=st.data(), failure=st.none() | failures, origin=st.sampled_from(list(Origin)))
    def finish_a_fetch(self, data: st.DataObject, failure: FallbackReason | None, origin: Origin) -> None:
        request_id, segment_hash = self.fetching.pop(data.draw(st.integers(0, len(self.fetching) - 1)))
        tokens = next(tokens for tokens in PASSAGES if hash_segment(tokens) == segment_hash)
        fetched = FetchedSegment(segment_hash=segment_hash, token_bytes=token_bytes(tokens), origin=origin)
        world = self.world
        world.take(world.engine.fetch_finished(request_id, segment_hash, failure or fetched, world.now_s))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        del self.live[request_id]
        self.world.take(self.world.engine.abort(RequestId(request_id), self.world.now_s))

    @precondition(lambda self: self.world.engine.stats().num_held)
    @rule(data=st.data())
    def pull_a_prompt(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.world.receipts)))
        self.world.engine.prompt_pulled(RequestId(request_id))

    @rule(numbers=prompts, join_them=st.booleans(), wait_s=st.floats(0, 1))
    def a_peer_asks(self, numbers: Sequence[int], join_them: bool, wait_s: float) -> None:
        ticket = TicketId(len(self.tickets))
        self.tickets.append(ticket)
        request = fetch_of(*(PASSAGES[number] for number in numbers), wait_s=wait_s, join_them=join_them)
        self.world.take(self.world.engine.serve_fetch(request, ticket, self.world.now_s))

    @precondition(lambda self: self.tickets)
    @rule(data=st.data())
    def a_transfer_ends(self, data: st.DataObject) -> None:
        self.world.engine.close_fetch(data.draw(st.sampled_from(self.tickets)))

    @rule(seconds=st.floats(0, 1))
    def time_passes(self, seconds: float) -> None:
        self.world.now_s += seconds
        self.world.take(self.world.engine.advance(self.world.now_s))

    @rule(ratio=st.floats(0, 1))
    def the_split_moves(self, ratio: float) -> None:
        self.world.engine.set_split(ratio)

    @rule()
    def clear(self) -> None:
        self.world.take(self.world.engine.clear())

    # ---- what must hold ----

    @invariant()
    def events_tell_the_state(self) -> None:
        for command in self.world.fetches[self.num_seen_fetches :]:
            self.fetching += [(command.request_id, wanted.segment_hash) for wanted in command.segments]
        self.num_seen_fetches = len(self.world.fetches)
        for event in self.world.events[self.num_seen_events :]:
            self.replica.apply(event)
        self.num_seen_events = len(self.world.events)
        state = self.world.engine.state_snapshot()
        assert self.replica.host == {block.block_hash for block in state.blocks if block.tiers & 2}
        assert self.replica.segments == {entry.segment_hash: entry.origin for entry in state.segments}
        published = dict(self.replica.next_id)
        if self.in_flight is None:
            assert self.replica.device == {block.block_hash for block in state.blocks if block.tiers & 1}
        else:
            # Events of the device tier wait for the end of the step that names the blocks.
            published.pop(Topic.KV_EVENTS, None)
        for topic, next_id in published.items():
            assert state.last_event_ids[topic] == next_id - 1

    @invariant()
    def capacities_are_kept(self) -> None:
        stats = self.world.engine.stats()
        assert stats.device_held_blocks <= DEVICE_TOKENS // BLOCK
        assert stats.store_prefix_tokens + stats.store_segment_tokens <= STORE_TOKENS

    @invariant()
    def receipts_add_up(self) -> None:
        for request_id, receipt in list(self.world.receipts.items())[self.num_checked :]:
            check_receipt(receipt)
            total_s = receipt.timing.queue_s + receipt.timing.wait_s + receipt.timing.compute_s
            assert abs(total_s - receipt.timing.total_s) < 1e-9
            assert receipt.timing.total_s <= self.world.now_s - self.live.pop(request_id) + 1e-9
        self.num_checked = len(self.world.receipts)

    @invariant()
    def a_step_respects_its_budget(self) -> None:
        for step in self.world.steps[-1:]:
            # Probes go beside the budget.
            most = 24 + len(step.shares) * probe_tokens(DEVICE_TOKENS)
            assert 0 < step.num_tokens == sum(share.num_tokens for share in step.shares) <= most
            assert abs(step.duration_s - step.num_tokens * TOKEN_S - step.load_s) < 1e-9

    def teardown(self) -> None:
        """Everything is aborted, pulled or closed: nothing may be left in use."""
        engine, now_s = self.world.engine, self.world.now_s
        for request_id in [*self.live, *self.world.receipts]:
            self.world.take(engine.abort(RequestId(request_id), now_s))
        for ticket in self.tickets:
            engine.close_fetch(ticket)
        if self.in_flight is not None:
            self.world.end_step(self.in_flight)
            self.in_flight = None
        assert self.world.begin_step() is None
        stats = engine.stats()
        assert (stats.device_held_blocks, stats.store_pinned_tokens, stats.num_segments_in_flight) == (0, 0, 0)
        assert (stats.num_waiting, stats.num_running, stats.num_helpers, stats.num_held) == (0, 0, 0, 0)
        self.world.take(engine.clear())
        self.events_tell_the_state()
        state = engine.state_snapshot()
        assert (state.blocks, state.segments) == ((), ())


def prompt_of(numbers: Sequence[int], tail: int) -> tuple[TokenArray, list[tuple[int, int]]]:
    """Passages one behind another and a question of its own, with the passages' spans."""
    pieces = [PASSAGES[number] for number in numbers]
    spans: list[tuple[int, int]] = []
    for piece in pieces:
        start = spans[-1][1] if spans else 0
        spans.append((start, start + len(piece)))
    return join(*pieces, passage(90 + tail, tail)), spans


def probe_tokens(hit_tokens: int) -> int:
    """What CacheBlend's choice among so many tokens costs."""
    return ceil(hit_tokens * (PROBE_LAYERS / NUM_LAYERS))


def check_receipt(receipt: Receipt) -> None:
    hits = receipt.prefix_hit_tokens + receipt.segment_hit_tokens
    assert receipt.prompt_tokens == hits + receipt.computed_tokens
    assert receipt.segment_hit_tokens == receipt.local_hit_tokens + receipt.fetched_hit_tokens
    assert 0 <= receipt.recomputed_tokens <= receipt.segment_hit_tokens
    assert receipt.recomputed_tokens == sum(outcome.recomputed_tokens for outcome in receipt.segments)
    probed_tokens = receipt.work.computed_tokens - receipt.computed_tokens - receipt.recomputed_tokens
    assert probed_tokens in (0, probe_tokens(receipt.segment_hit_tokens))
    assert 0 <= receipt.invalid_hit_tokens <= receipt.prompt_tokens
    assert min(receipt.timing.queue_s, receipt.timing.wait_s, receipt.timing.compute_s) >= 0
    # No more pairs than prefill of all tokens has, and than a probe of them all.
    most = attention_pairs(receipt.prompt_tokens, 0)
    assert receipt.work.attention_pairs <= most * (1 + PROBE_LAYERS / NUM_LAYERS) + 1e-6
    if not probed_tokens:
        assert receipt.work.attention_pairs <= most + 1e-6
    end = 0
    for outcome in receipt.segments:
        assert end <= outcome.start < outcome.end <= receipt.prompt_tokens
        assert outcome.fallback is None or outcome.done is Source.COMPUTE
        end = outcome.end


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
