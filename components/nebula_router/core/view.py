"""The one merged view: what workers confirm, together with what the router has just caused."""

from collections.abc import Sequence

import numpy as np

from nebula_protocol.card import WorkerCard
from nebula_protocol.events import WorkerKvEvent, WorkerPicEvents
from nebula_protocol.hashing import salt_of
from nebula_protocol.ids import DomainId, EventId, RequestId, SegmentHash, WorkerId, WorkerWithDpRank
from nebula_protocol.layout import PromptLayout
from nebula_protocol.messages import StateChunk
from nebula_protocol.plan import Plan
from nebula_protocol.receipt import Receipt
from nebula_protocol.subjects import Topic
from nebula_router.core.coverage import Coverage
from nebula_router.core.event_intake import EventIntake
from nebula_router.core.evidence import Applied
from nebula_router.core.holder_table import Kind
from nebula_router.core.index import Index
from nebula_router.core.lookup import Columns, Lookup, look_up
from nebula_router.core.plan_answer import PlanAnswer
from nebula_router.core.request_claims import RequestClaims
from nebula_router.core.worker_profile import WorkerProfile, profiles_of


class ClusterView:
    """Prefill workers, what each holds, and what is on its way. For one event loop: no locks, and no call awaits.

    Events are taken in with the apply methods, the router's own deeds with the record methods; both correct each other.
    Only prefill workers hold; a decode worker is known and ignored.
    """

    def __init__(self, *, max_entries: int, max_holders: int, ttl_s: float) -> None:
        """
        Args:
            max_entries: bound on blocks and segments together; the longest unused make room.
            max_holders: bound on schedulers (worker, dp_rank).
            ttl_s: how long a speculative entry outlives its expected completion unless an event confirms it.
        """
        self._index = Index(max_entries=max_entries, max_holders=max_holders, ttl_s=ttl_s)
        self._intake = EventIntake(self._index)
        self._requests = RequestClaims(self._index)
        self._columns: Columns | None = None
        self._last_lookup: Lookup | None = None

    # ---- sizes ----

    @property
    def num_entries(self) -> int:
        return len(self._index.table)

    @property
    def num_blocks(self) -> int:
        return self._index.table.count(Kind.BLOCK)

    @property
    def num_segments(self) -> int:
        return self._index.table.count(Kind.SEGMENT)

    @property
    def num_workers(self) -> int:
        """That hold something: schedulers of prefill workers."""
        return len(self._index.holders)

    @property
    def num_claims(self) -> int:
        return len(self._index.claims)

    @property
    def num_evicted(self) -> int:
        """Entries that made room for others since the start."""
        return self._index.table.num_evicted

    # ---- members ----

    def worker_ids(self) -> frozenset[WorkerId]:
        """All that are known, with those whose first state is awaited."""
        return self._intake.worker_ids()

    def needs_state(self) -> frozenset[WorkerId]:
        """Whose full state must be asked for: new, restarted or gapped."""
        return self._intake.needs_state()

    def profiles(self) -> tuple[WorkerProfile, ...]:
        """Of the prefill workers whose card is known, one per scheduler, ascending."""
        cards = [feed.card for feed in self._intake.feeds() if feed.holders and feed.card is not None]
        profiles = [profile for card in cards for profile in profiles_of(card)]
        return tuple(sorted(profiles, key=lambda profile: profile.worker))

    def last_event_ids(self, worker: WorkerWithDpRank) -> dict[Topic, EventId]:
        """Per topic the last event of the worker in this view, -1 for none. Empty for an unknown worker."""
        feed = self._intake.feed(worker.worker_id)
        return feed.last_event_ids(worker.dp_rank) if feed is not None else {}

    def begin_state(self, worker_id: WorkerId) -> None:
        """To be called before a worker's state is asked for: its events from now on are kept for the state's sake."""
        self._intake.begin_state(worker_id)

    def add_worker(self, card: WorkerCard) -> None:
        """A worker that is known to have published nothing yet.

        Raises:
            TooManyWorkersError
        """
        self._intake.add_worker(card)

    def remove_worker(self, worker_id: WorkerId) -> None:
        """Forgets the worker and all that it had. O(entries)."""
        self._intake.remove_worker(worker_id)

    # ---- events ----

    def apply_kv_events(self, events: Sequence[WorkerKvEvent], now_s: float) -> Applied:
        return self._intake.apply_kv_events(events, now_s)

    def apply_pic_events(self, events: WorkerPicEvents, now_s: float) -> Applied:
        return self._intake.apply_pic_events(events, now_s)

    def apply_state(self, chunks: Sequence[StateChunk], now_s: float) -> Applied:
        """Replaces all that the worker had by its full state and the events since; live claims stay. O(entries).

        Raises:
            DecodeError: these are not all chunks of one snapshot.
            TooManyWorkersError: the worker is new, and there is no room for it.
        """
        return self._intake.apply_state(chunks, now_s)

    # ---- requests ----

    def coverage(
        self, layout: PromptLayout, domain_id: DomainId, holders: tuple[WorkerWithDpRank, ...], now_s: float
    ) -> Coverage:
        """Who has what of the prompt, after ending what has expired.

        Args:
            domain_id: of the request, with its tenant.
            holders: the coverage's columns; pass the same tuple again and again.

        Raises:
            KeyError: one of `holders` is unknown.
        """
        self.expire(now_s)
        self._last_lookup = look_up(self._index, layout, domain_id, _blocks_salt(domain_id), self._columns_of(holders))
        return self._last_lookup.coverage

    def is_held_elsewhere(self, domain_id: DomainId, segment_hash: SegmentHash, worker: WorkerWithDpRank) -> bool:
        """Whether another worker than this one has the segment, or is about to."""
        return self._index.has_other_holder(domain_id, segment_hash, self._index.holders.get(worker))

    def record_dispatch(self, layout: PromptLayout, answer: PlanAnswer) -> None:
        """The request is on its way: what the target and the helpers will have is IN_FLIGHT from now on.

        Cheap right after `coverage` of the same layout. A request that is placed anew replaces what it claimed at the
        same worker before.
        """
        self._requests.withdraw(answer)
        lookup, domain_id = self._last_lookup, answer.plan.domain_id
        is_fresh = lookup is not None and lookup.table_version == self._index.table.version
        if lookup is None or not is_fresh or lookup.layout is not layout or lookup.domain_id != domain_id:
            lookup = look_up(self._index, layout, domain_id, _blocks_salt(domain_id), self._columns_of(()))
        self._requests.record_dispatch(lookup, answer)
        self._last_lookup = None

    def postpone(self, request_id: RequestId, worker: WorkerWithDpRank, ready_at_s: float) -> None:
        """The worker will be ready at another time than was expected at dispatch."""
        self._requests.postpone(request_id, worker, ready_at_s)

    def record_receipt(self, plan: Plan, receipt: Receipt, now_s: float) -> None:
        """The target of the plan, or one of its helpers, has said what it did."""
        self._intake.expect_events(receipt, now_s)
        self._requests.record_receipt(plan, receipt, now_s)

    def record_helper_done(self, request_id: RequestId, worker: WorkerWithDpRank, now_s: float) -> None:
        """A helper has done all that it was asked for."""
        self._requests.record_done(request_id, worker, now_s)

    def record_failure(self, request_id: RequestId, worker: WorkerWithDpRank) -> None:
        """The request failed or was cancelled at the worker: nothing that it was to leave there will come."""
        self._requests.record_failure(request_id, worker)

    def expire(self, now_s: float) -> int:
        """Ends claims whose time is over, and returns how many. Every `coverage` does this first."""
        return self._intake.expire(now_s)

    def _columns_of(self, holders: tuple[WorkerWithDpRank, ...]) -> Columns:
        known, version = self._columns, self._index.holders.version
        if known is None or known.version != version or known.holders is not holders:
            known = Columns(holders, np.array(self._index.holders.slots_of(holders), dtype=np.int64), version)
            self._columns = known
        return known


def _blocks_salt(domain_id: DomainId) -> int:
    """The tenant is part of the name of a request's domain only; a tenant's blocks differ by their hashes."""
    worker_domain, _, _ = domain_id.partition("/")
    return salt_of(worker_domain)
