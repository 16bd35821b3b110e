"""The router's state feeds the split controller: losses from events, prompts from receipts."""

import pytest
from support.placement_case import round_card
from support.router_replies import receipt_for
from support.router_world import body_of, decide, metric_value, new_state, spans, state_of
from support.split_case import lookup

from nebula_protocol.events import PicEvent, SegmentRemoved, WorkerPicEvents
from nebula_protocol.ids import EventId, RemovalReason, WorkerEpoch, WorkerId
from nebula_router.core.capacity import GhostHits
from nebula_router.decide import Decided, Learned, RouterState
from nebula_router.metrics import GhostKind, MetricName, RouterMetrics

# The stretches beside the span are segments too; the first is its own prefix, the last lies at the end.
BODY = body_of(range(1_000), annotations=[spans((100, 700))])
SPAN = 1


def prefill(state: RouterState, number: int) -> tuple[Decided, Learned]:
    decided = decide(state, BODY, f"r{number}", now_s=float(number))
    return decided, state.record_receipt(decided, receipt_for(decided.plan, 1_000), float(number))


def lose_segment(state: RouterState, decided: Decided, *, event_id: int, reason: RemovalReason) -> None:
    data = SegmentRemoved(
        segment_hash=decided.plan.segments[SPAN].segment_hash, domain_id=decided.plan.domain_id, reason=reason
    )
    event = PicEvent(event_id=EventId(event_id), data=data)
    message = WorkerPicEvents(worker_id=WorkerId(1), epoch=WorkerEpoch(1), events=(event,))
    assert state.apply_pic_events(message, 0.5).lost


@pytest.mark.parametrize(
    ("reason", "hits"),
    [(RemovalReason.CAPACITY, GhostHits(segment_tokens=600)), (RemovalReason.DROPPED, GhostHits())],
)
def test_a_segment_that_was_lost_for_want_of_room_is_a_ghost_hit_when_it_is_asked_for(
    reason: RemovalReason, hits: GhostHits
) -> None:
    state = new_state(round_card(1))
    decided, learned = prefill(state, 0)
    assert learned.ghost_hits == GhostHits()
    lose_segment(state, decided, event_id=0, reason=reason)
    # Its 600 tokens are computed again: nothing of the round worker's segments is recomputed anyway.
    assert prefill(state, 1)[1].ghost_hits == hits


def test_a_segment_that_is_held_is_no_ghost_hit() -> None:
    state = new_state(round_card(1))
    prefill(state, 0)
    assert prefill(state, 1)[1].ghost_hits == GhostHits()


def test_with_a_fixed_split_nothing_is_learned() -> None:
    state = new_state(round_card(1), split="fixed")
    assert state.split is None
    decided, _ = prefill(state, 0)
    lose_segment(state, decided, event_id=0, reason=RemovalReason.CAPACITY)
    assert prefill(state, 1)[1].ghost_hits == GhostHits()


def test_the_controller_begins_at_the_configured_split() -> None:
    state = new_state(round_card(1), prefix_ratio=0.7)
    assert state.split is not None
    assert state.split.prefix_ratio == 0.7


def test_workers_that_come_and_go_change_the_room() -> None:
    state = new_state(round_card(1), window_requests=1, prefix_ratio=1.0)
    assert state.split is not None
    state.remove_worker(WorkerId(1))
    assert state.worker_epochs() == {}
    for _ in range(10):
        state.split.record_use(lookup(1, num_tokens=10_000))
    # Without workers nobody has a store to divide.
    assert state.split.prefix_ratio == 1.0
    state.apply_state(state_of(round_card(2, epoch=WorkerEpoch(5))), 1.0)
    assert state.worker_epochs() == {2: 5}
    for _ in range(10):
        state.split.record_use(lookup(1, num_tokens=10_000))
    # All room for blocks: the segment cannot be kept, and that is seen at once.
    assert state.split.prefix_ratio < 1.0


def test_ghost_hits_are_counted_by_kind() -> None:
    metrics = RouterMetrics()
    for kind in GhostKind:
        assert metric_value(metrics, MetricName.GHOST_HIT_TOKENS, kind=kind) == 0.0
    state = new_state(round_card(1))
    decided, _ = prefill(state, 0)
    receipt = receipt_for(decided.plan, 1_000)
    metrics.observe_receipt(
        receipt, Learned(repeated_tokens=0, ghost_hits=GhostHits(prefix_tokens=3, segment_tokens=5))
    )
    assert metric_value(metrics, MetricName.GHOST_HIT_TOKENS, kind="prefix") == 3.0
    assert metric_value(metrics, MetricName.GHOST_HIT_TOKENS, kind="segment") == 5.0
