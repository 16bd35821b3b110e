"""Routers of one pool: what one dispatched, the others count on, until it ends or its router leaves."""

from dataclasses import dataclass, field

from support.placement_case import round_card
from support.router_replies import receipt_for
from support.router_world import body_of, decide, new_state, spans

from nebula_protocol.ids import WorkerId
from nebula_router.decide import Decided, RouterState
from nebula_router.replicas import Replicas

A, B = WorkerId(100), WorkerId(200)
PROMPT = list(range(100))
SPAN = spans((20, 80))


@dataclass
class Pool:
    """Two routers in front of the same workers; what one sends, the other gets. B's clock is 50 s ahead."""

    live: set[WorkerId] = field(default_factory=lambda: {A, B})
    num_sent: int = 0

    def __post_init__(self) -> None:
        self.states = {one: new_state(round_card(1), round_card(2)) for one in (A, B)}
        self.replicas = {A: self._replicas(A, 0.0), B: self._replicas(B, 50.0)}

    def _replicas(self, own_id: WorkerId, now_s: float) -> Replicas:
        return Replicas(
            own_id,
            state=self.states[own_id],
            live_routers=lambda: frozenset(self.live),
            send=lambda data: self._deliver(own_id, data),
            clock=lambda: now_s,
        )

    def _deliver(self, sender: WorkerId, data: bytes) -> None:
        self.num_sent += 1
        for own_id, replicas in self.replicas.items():
            if own_id != sender:
                replicas.take(data)

    def dispatch(self) -> Decided:
        decided = decide(self.states[A], body_of(PROMPT, annotations=[SPAN]), "r")
        self.replicas[A].tell_dispatch(decided)
        return decided


def target_of(state: RouterState) -> int:
    return decide(state, body_of(list(range(500, 600))), "probe", now_s=50.0).plan.target.worker_id


def test_the_other_router_counts_on_what_one_has_dispatched() -> None:
    pool = Pool()
    # Both workers are idle for a router that was told nothing, and the lower id wins.
    untold = target_of(Pool().states[B])
    decided = pool.dispatch()
    assert decided.plan.target.worker_id == untold
    other = pool.states[B]
    assert (other.view.num_claims, other.view.num_segments) == (1, 1)
    assert target_of(other) != untold


def test_a_receipt_ends_the_work_and_keeps_what_was_stored() -> None:
    pool = Pool()
    decided = pool.dispatch()
    pool.replicas[A].tell_end(decided, receipt_for(decided.plan, len(PROMPT)))
    again = decide(pool.states[B], body_of(PROMPT), "next", now_s=50.0)
    assert again.plan.estimate.free_in_s == 0
    assert pool.states[B].view.num_segments == 1


def test_a_failure_and_a_router_that_left_leave_nothing_behind() -> None:
    for ends in (True, False):
        pool = Pool()
        decided = pool.dispatch()
        if ends:
            pool.replicas[A].tell_end(decided, None)
        else:
            pool.live.remove(A)
            pool.replicas[B].forget_departed()
        assert (pool.states[B].view.num_claims, pool.states[B].view.num_segments) == (0, 0)


def test_a_router_alone_sends_nothing_and_a_new_one_is_told_what_is_in_flight_once() -> None:
    pool = Pool(live={A})
    pool.dispatch()
    assert pool.num_sent == 0
    pool.live.add(B)
    pool.replicas[B].say_hello()
    pool.replicas[B].say_hello()
    assert pool.states[B].view.num_claims == 1


def test_an_unreadable_record_and_ones_own_change_nothing() -> None:
    pool = Pool()
    pool.replicas[B].take(b"\xc1 no record")
    assert pool.states[B].view.num_claims == 0


def test_the_lowest_live_router_steers() -> None:
    pool = Pool()
    assert [pool.replicas[one].steers() for one in (A, B)] == [True, False]
    pool.live.remove(A)
    assert pool.replicas[B].steers()
