"""The views that the merged one is compared with: what each knows between a dispatch and the worker's word."""

import pytest
from support.placement_case import round_card
from support.router_replies import receipt_for
from support.router_world import body_of, decide, new_state, spans, state_of
from support.view_world import NOW_S, TTL_S, Dispatch, Publisher, prompt, segment_states

from nebula_protocol.ids import WorkerId
from nebula_protocol.plan import Source
from nebula_router.core.accounting_views import EventDrivenView, OptimisticView, PredictedView
from nebula_router.core.coverage import IN_FLIGHT, NOT_HELD, STORED, UNCONFIRMED
from nebula_router.core.view import ClusterView
from nebula_router.settings import RouterSettings

ONE = WorkerId(1)
VIEWS = {"merged": ClusterView, "events": EventDrivenView, "predicted": PredictedView, "optimistic": OptimisticView}


def view_of_one(kind: type[ClusterView]) -> ClusterView:
    view = kind(max_entries=1_000, max_holders=4, ttl_s=TTL_S)
    view.apply_state(Publisher().state(segments=["old"]), NOW_S)
    return view


def dispatched(kind: type[ClusterView]) -> ClusterView:
    """Segment `a` is being computed at worker 1."""
    view = view_of_one(kind)
    Dispatch(prompt(segments=["a"]), computed=(0,)).record(view)
    return view


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (ClusterView, IN_FLIGHT),
        (EventDrivenView, NOT_HELD),
        (PredictedView, UNCONFIRMED),
        (OptimisticView, UNCONFIRMED),
    ],
)
def test_what_was_just_dispatched_is_on_its_way_or_unknown_or_taken_as_there(
    kind: type[ClusterView], state: int
) -> None:
    assert segment_states(dispatched(kind), "a") == [state]


@pytest.mark.parametrize("kind", [ClusterView, EventDrivenView, PredictedView])
def test_events_settle_what_a_segment_is(kind: type[ClusterView]) -> None:
    view, events = dispatched(kind), Publisher()
    view.apply_pic_events(events.segment_stored("a"), NOW_S)
    assert segment_states(view, "a") == [STORED]
    view.apply_pic_events(events.segment_removed("a"), NOW_S)
    assert segment_states(view, "a") == [NOT_HELD]


def test_an_optimistic_view_heeds_no_event_and_asks_for_no_repair() -> None:
    view, events = dispatched(OptimisticView), Publisher()
    view.apply_pic_events(events.segment_removed("old"), NOW_S)
    events.segment_removed("lost")
    view.apply_pic_events(events.segment_removed("a"), NOW_S)
    assert (segment_states(view, "old"), segment_states(view, "a")) == ([STORED], [UNCONFIRMED])
    assert not view.needs_state()


def test_an_optimistic_view_asks_for_a_workers_first_state_until_it_has_it() -> None:
    view = OptimisticView(max_entries=1_000, max_holders=4, ttl_s=TTL_S)
    view.begin_state(ONE)
    assert view.needs_state() == {ONE}
    view.apply_state(Publisher().state(segments=["old"]), NOW_S)
    assert not view.needs_state()
    assert segment_states(view, "old") == [STORED]


def test_a_prediction_ends_after_its_time_to_live_and_an_optimistic_entry_does_not() -> None:
    later_s = NOW_S + TTL_S + 1
    assert segment_states(dispatched(PredictedView), "a", later_s) == [NOT_HELD]
    assert segment_states(dispatched(OptimisticView), "a", later_s) == [UNCONFIRMED]


@pytest.mark.parametrize("kind", [PredictedView, OptimisticView])
def test_a_failure_does_not_take_a_prediction_back(kind: type[ClusterView]) -> None:
    view = dispatched(kind)
    dispatch = Dispatch(prompt(segments=["a"]), computed=(0,))
    view.record_failure(dispatch.plan().request_id, dispatch.plan().target)
    assert segment_states(view, "a") == [UNCONFIRMED]


@pytest.mark.parametrize("accounting", VIEWS)
def test_the_setting_chooses_the_view(accounting: str) -> None:
    assert type(new_state(accounting=accounting).view) is VIEWS[accounting]


def test_the_merged_view_is_the_default() -> None:
    assert RouterSettings().accounting == "merged"


@pytest.mark.parametrize(
    ("accounting", "source"),
    [("merged", Source.LOCAL), ("events", Source.COMPUTE), ("predicted", Source.LOCAL), ("optimistic", Source.LOCAL)],
)
def test_a_receipt_without_events_is_believed_by_all_but_the_event_driven_view(accounting: str, source: Source) -> None:
    state = new_state(round_card(1), accounting=accounting)
    body = body_of(range(200), annotations=[spans((50, 150))])
    first = decide(state, body, "first")
    state.record_receipt(first, receipt_for(first.plan, 200), 0.0)
    # Other tokens before the segment, so that nothing of it is a prefix hit.
    again = decide(state, body_of([*range(500, 550), *range(50, 150)], annotations=[spans((50, 150))]), "again")
    assert again.plan.segments[-1].source is source


def test_a_worker_that_comes_back_under_an_optimistic_view_is_placed_on_again() -> None:
    state = new_state(round_card(1), accounting="optimistic")
    state.remove_worker(ONE)
    assert not state.worker_ids()
    state.view.begin_state(ONE)
    state.apply_state(state_of(round_card(1)), 1.0)
    assert state.worker_ids() == {ONE}
