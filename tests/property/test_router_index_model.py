"""The merged view against sets and dicts: any history of events, dispatches, receipts, failures and time."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.naive_view import NaiveHolder, NaiveView, Prefix
from support.placement_case import BLOCK, round_card, worker
from support.view_world import TTL_S, Dispatch, Publisher, cover, entry, prompt

from nebula_protocol.events import StoreCleared, WorkerKvEvent, WorkerPicEvents
from nebula_protocol.ids import RequestId, WorkerId
from nebula_router.core.view import ClusterView

PATHS = [(1, 1, 1, 1), (1, 1, 2, 2), (1, 2, 2, 2), (2, 2, 2, 2)]
SEGMENTS = ("a", "b", "c")
NUM_WORKERS = 2

paths = st.sampled_from([path[:length] for path in PATHS for length in (1, 2, 4)])
workers = st.integers(0, NUM_WORKERS - 1)
some_segments = st.sets(st.sampled_from(SEGMENTS), max_size=3)


@dataclass(slots=True)
class Engine:
    """What a worker calls its blocks, and what it has published."""

    publisher: Publisher
    names: dict[Prefix, int] = field(default_factory=dict)
    host_later: list[int] = field(default_factory=list)
    """Blocks that the store took and that it has not told of yet."""
    sent: list[WorkerKvEvent | WorkerPicEvents] = field(default_factory=list)

    def name(self, prefix: Prefix) -> int:
        return self.names.setdefault(prefix, 1000 * self.publisher.worker_id + len(self.names))


class ViewAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.view = ClusterView(max_entries=10_000, max_holders=8, ttl_s=TTL_S)
        self.model = NaiveView(TTL_S)
        self.now_s = 100.0
        self.engines: list[Engine] = []
        self.num_started = 0
        self.eager = False
        """Look after every step. Looks enter claimed blocks, so the other half of the examples seldom look."""
        self.dispatched: list[Dispatch] = []

    @initialize(eager=st.booleans())
    def start(self, eager: bool) -> None:
        self.eager = eager
        for _ in range(NUM_WORKERS):
            self.engines.append(self.new_engine())

    def new_engine(self) -> Engine:
        self.num_started += 1
        self.view.add_worker(round_card(self.num_started))
        self.model.holders[self.num_started] = NaiveHolder()
        return Engine(Publisher(self.num_started))

    def tell(self, engine: Engine, message: WorkerKvEvent | WorkerPicEvents) -> None:
        engine.sent.append(message)
        self.apply(message)

    def apply(self, message: WorkerKvEvent | WorkerPicEvents) -> None:
        if isinstance(message, WorkerKvEvent):
            self.view.apply_kv_events([message], self.now_s)
        else:
            self.view.apply_pic_events(message, self.now_s)

    # ---- engines ----

    @rule(at=workers, path=paths, split=st.integers(1, 4))
    def compute(self, at: int, path: Prefix, split: int) -> None:
        self.run_engine(at, path, split)

    @rule(at=workers, path=paths)
    def store_before_it_is_announced(self, at: int, path: Prefix) -> None:
        """The topic of the store may be ahead."""
        engine, worker_id = self.engines[at], self.engines[at].publisher.worker_id
        if path not in self.model.holders[worker_id].device:
            self.store_host(engine, [engine.name(path)])
            self.run_engine(at, path, 4)

    @precondition(lambda self: self.dispatched)
    @rule(choice=st.integers(0, 3), split=st.integers(1, 4), num_blocks=st.integers(1, 4))
    def serve(self, choice: int, split: int, num_blocks: int) -> None:
        """The engine gets so far with one of the latest requests."""
        dispatch = self.dispatched[-1 - choice % len(self.dispatched)]
        for at, engine in enumerate(self.engines):
            if engine.publisher.worker_id == dispatch.target:
                self.run_engine(at, tuple(dispatch.layout.block_hashes.tolist())[:num_blocks], split)

    def run_engine(self, at: int, path: Prefix, split: int) -> None:
        engine, worker_id = self.engines[at], self.engines[at].publisher.worker_id
        held = self.model.holders[worker_id].device
        missing = [depth for depth in range(len(path)) if path[: depth + 1] not in held]
        for part in (missing[:split], missing[split:]):
            if part:
                names = [engine.name(path[: depth + 1]) for depth in part]
                hashes = [path[depth] for depth in part]
                parent = engine.name(path[: part[0]]) if part[0] else None
                self.tell(engine, engine.publisher.stored(names, hashes, parent))
                self.model.store(worker_id, parent, names, hashes)

    @rule(at=workers, choice=st.integers(0, 5), store=st.sampled_from(["before", "after", "later", "never"]))
    def evict_from_device(self, at: int, choice: int, store: str) -> None:
        """Chains lose their ends first, as engines do it."""
        engine, holder = self.engines[at], self.model.holders[self.engines[at].publisher.worker_id]
        parents = {prefix[:-1] for prefix in holder.device}
        leaves = sorted(prefix for prefix in holder.device if prefix not in parents)
        if not leaves:
            return
        name = engine.name(leaves[choice % len(leaves)])
        if store == "before":
            self.store_host(engine, [name])
        self.tell(engine, engine.publisher.removed([name]))
        self.model.remove(engine.publisher.worker_id, [name], self.now_s)
        if store == "after":
            self.store_host(engine, [name])
        elif store == "later":
            engine.host_later.append(name)

    @rule(at=workers)
    def tell_what_the_store_took(self, at: int) -> None:
        engine = self.engines[at]
        names, engine.host_later = engine.host_later, []
        if names:
            self.store_host(engine, names)

    def store_host(self, engine: Engine, names: list[int]) -> None:
        self.tell(engine, engine.publisher.host_stored(names))
        self.model.store_host(engine.publisher.worker_id, names, self.now_s)

    @rule(at=workers, choice=st.integers(0, 5))
    def evict_from_store(self, at: int, choice: int) -> None:
        engine, worker_id = self.engines[at], self.engines[at].publisher.worker_id
        held = sorted(self.model.holders[worker_id].host)
        if held:
            names = [engine.name(held[choice % len(held)])]
            self.tell(engine, engine.publisher.host_removed(names))
            self.model.remove_host(worker_id, names)

    def clear_device(self, at: int) -> None:
        engine = self.engines[at]
        self.tell(engine, engine.publisher.cleared())
        self.model.clear_device(engine.publisher.worker_id)

    def clear_store(self, at: int) -> None:
        engine = self.engines[at]
        self.tell(engine, engine.publisher.pic(StoreCleared()))
        self.model.clear_store(engine.publisher.worker_id)

    @rule(at=workers, name=st.sampled_from(SEGMENTS), is_stored=st.booleans())
    def segment_event(self, at: int, name: str, is_stored: bool) -> None:
        engine, worker_id = self.engines[at], self.engines[at].publisher.worker_id
        if is_stored:
            self.tell(engine, engine.publisher.segment_stored(name))
            self.model.store_segment(worker_id, name)
        else:
            self.tell(engine, engine.publisher.segment_removed(name))
            self.model.remove_segment(worker_id, name)

    @rule(at=workers, choice=st.integers(0, 5))
    def repeat_an_event(self, at: int, choice: int) -> None:
        sent = self.engines[at].sent
        if sent:
            self.apply(sent[-1 - choice % len(sent)])

    def send_the_state(self, at: int) -> None:
        engine, worker_id = self.engines[at], self.engines[at].publisher.worker_id
        holder = self.model.holders[worker_id]
        entries = [
            entry(
                engine.name(prefix),
                engine.name(prefix[:-1]) if len(prefix) > 1 else None,
                (prefix in holder.device) + 2 * (prefix in holder.host),
                prefix[-1],
            )
            for prefix in sorted(holder.device | holder.host, key=lambda prefix: (len(prefix), prefix))
        ]
        self.view.apply_state(engine.publisher.state(entries, sorted(holder.segments)), self.now_s)
        device = {engine.name(prefix): prefix for prefix in holder.device}
        host = {engine.name(prefix): prefix for prefix in holder.host}
        self.model.replace(worker_id, device, host, holder.segments)

    def replace_the_worker(self, at: int) -> None:
        old = self.engines[at].publisher.worker_id
        self.view.remove_worker(WorkerId(old))
        self.model.drop_worker(old)
        self.engines[at] = self.new_engine()

    @rule(at=workers, what=st.sampled_from(["device cleared", "store cleared", "state", "replaced"]))
    def disturb(self, at: int, what: str) -> None:
        match what:
            case "device cleared":
                self.clear_device(at)
            case "store cleared":
                self.clear_store(at)
            case "state":
                self.send_the_state(at)
            case "replaced":
                self.replace_the_worker(at)

    # ---- requests ----

    @rule(
        home=workers,
        helper=workers,
        path=paths,
        computed=some_segments,
        copied=some_segments,
        helped=some_segments,
        takes_s=st.sampled_from([1.0, 4.0]),
        again=st.booleans(),
    )
    def dispatch(
        self,
        home: int,
        helper: int,
        path: Prefix,
        computed: set[str],
        copied: set[str],
        helped: set[str],
        takes_s: float,
        again: bool,
    ) -> None:
        target_id, helper_id = (self.engines[at].publisher.worker_id for at in (home, helper))
        copied = copied - computed
        has_helper = bool(helped) and helper_id != target_id
        request_id = f"request {len(self.dispatched) - int(again and not has_helper and bool(self.dispatched))}"
        indices = {name: index for index, name in enumerate(SEGMENTS)}
        dispatch = Dispatch(
            prompt(path, SEGMENTS),
            target=target_id,
            request_id=request_id,
            computed=[indices[name] for name in sorted(computed)],
            copied=[indices[name] for name in sorted(copied)],
            helpers={helper_id: [indices[name] for name in sorted(helped)]} if has_helper else {},
            runnable_at_s=self.now_s + takes_s / 2,
            ready_at_s=self.now_s + takes_s,
        )
        self.dispatched.append(dispatch)
        self.model.expire(self.now_s)
        dispatch.record(self.view, self.now_s)
        ready_at_s = dict.fromkeys(computed, dispatch.ready_at_s) | dict.fromkeys(copied, dispatch.runnable_at_s)
        self.model.dispatch(request_id, target_id, path, ready_at_s, dispatch.ready_at_s)
        if has_helper:
            times_s = dict.fromkeys(helped, dispatch.runnable_at_s)
            self.model.dispatch(request_id, helper_id, (), times_s, dispatch.runnable_at_s)

    @precondition(lambda self: self.dispatched)
    @rule(
        choice=st.integers(0, 5),
        at=workers,
        end=st.sampled_from(["receipt", "failure", "postponed", "done"]),
        kept=some_segments,
    )
    def hear_of_a_request(self, choice: int, at: int, end: str, kept: set[str]) -> None:
        dispatch = self.dispatched[-1 - choice % len(self.dispatched)]
        worker_id, request_id = self.engines[at].publisher.worker_id, RequestId(dispatch.request_id)
        match end:
            case "receipt":
                stored = [index for index, name in enumerate(SEGMENTS) if name in kept]
                receipt = dispatch.receipt(stored, by=worker(worker_id))
                self.view.record_receipt(dispatch.plan(), receipt, self.now_s)
                self.model.receive(request_id, worker_id, kept, self.now_s)
            case "failure":
                self.view.record_failure(request_id, worker(worker_id))
                self.model.fail(request_id, worker_id)
            case "postponed":
                self.view.postpone(request_id, worker(worker_id), self.now_s + 3)
                self.model.postpone(request_id, worker_id, self.now_s + 3)
            case "done":
                self.view.record_helper_done(request_id, worker(worker_id), self.now_s)
                self.model.finish(request_id, worker_id, self.now_s)

    @rule(step_s=st.sampled_from([0.4, 1.1, 3.0, 7.0]))
    def wait(self, step_s: float) -> None:
        self.now_s += step_s

    # ---- answers ----

    @rule(path=st.sampled_from(PATHS))
    def look(self, path: Prefix) -> None:
        self.model.expire(self.now_s)
        coverage = cover(self.view, prompt(path, SEGMENTS), self.now_s)
        ids = [holder.worker_id for holder in coverage.holders]
        assert ids == sorted(self.model.holders)
        assert [tokens // BLOCK for tokens in coverage.prefix_device_tokens.tolist()] == [
            self.model.run(worker_id, path, device_only=True) for worker_id in ids
        ]
        assert [tokens // BLOCK for tokens in coverage.prefix_tokens.tolist()] == [
            self.model.run(worker_id, path, device_only=False) for worker_id in ids
        ]
        for row, name in enumerate(SEGMENTS):
            expected = [self.model.segment(worker_id, name) for worker_id in ids]
            assert coverage.segment_states[row].tolist() == [state for state, _ in expected]
            assert coverage.segment_ready_at_s[row].tolist() == [ready_at_s for _, ready_at_s in expected]

    @invariant()
    def the_sizes_agree(self) -> None:
        for path in PATHS if self.eager else ():
            self.look(path)
        assert self.view.num_claims == len(self.model.claims)
        # Claimed blocks may wait to be entered.
        assert self.model.confirmed_entries() <= self.view.num_entries <= self.model.all_entries()

    def teardown(self) -> None:
        for path in PATHS:
            self.look(path)
        for dispatch in self.dispatched:
            for engine in self.engines:
                self.view.record_failure(RequestId(dispatch.request_id), worker(engine.publisher.worker_id))
        assert (self.view.num_entries, self.view.num_claims) == (self.model.confirmed_entries(), 0)
        for engine in self.engines:
            self.view.remove_worker(WorkerId(engine.publisher.worker_id))
        assert (self.view.num_entries, self.view.num_claims) == (0, 0)


ViewAgainstModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestViewAgainstModel = ViewAgainstModel.TestCase
