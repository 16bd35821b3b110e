"""Completeness of one stream of events."""

from nebula_protocol.ids import EventId
from nebula_router.core.event_gap import EventTracker, Verdict


def tracker_at(last_id: int, *, keep: bool = False) -> EventTracker[str]:
    tracker: EventTracker[str] = EventTracker(keep=keep)
    tracker.resume(EventId(last_id))
    if keep:
        tracker.keep()
    return tracker


def offer(tracker: EventTracker[str], *event_ids: int) -> list[Verdict]:
    return [tracker.offer(EventId(event_id), f"event {event_id}") for event_id in event_ids]


def test_consecutive_events_follow_each_other_from_0() -> None:
    assert offer(EventTracker(keep=False), 0, 1, 2) == [Verdict.NEXT] * 3


def test_a_jump_is_a_gap_and_counting_goes_on_behind_it() -> None:
    assert offer(EventTracker(keep=False), 0, 2, 3) == [Verdict.NEXT, Verdict.GAP, Verdict.NEXT]


def test_a_stream_that_does_not_begin_at_0_has_a_gap() -> None:
    assert offer(EventTracker(keep=False), 5) == [Verdict.GAP]


def test_repeated_and_older_events_are_old() -> None:
    assert offer(EventTracker(keep=False), 0, 1, 1, 0) == [Verdict.NEXT, Verdict.NEXT, Verdict.OLD, Verdict.OLD]


def test_events_that_a_state_contains_are_old() -> None:
    assert offer(tracker_at(7), 6, 7, 8) == [Verdict.OLD, Verdict.OLD, Verdict.NEXT]


def test_events_behind_a_state_are_given_back_when_it_arrives() -> None:
    tracker = tracker_at(3, keep=True)
    offer(tracker, 4, 5, 6)
    resumed = tracker.resume(EventId(5))
    assert (resumed.events, resumed.complete) == (("event 6",), True)
    assert tracker.last_id == 6


def test_a_state_that_is_newer_than_all_events_leaves_nothing_to_do() -> None:
    tracker = tracker_at(3, keep=True)
    offer(tracker, 4)
    resumed = tracker.resume(EventId(9))
    assert (resumed.events, resumed.complete) == ((), True)
    assert offer(tracker, 9, 10) == [Verdict.OLD, Verdict.NEXT]


def test_a_gap_behind_the_state_leaves_it_incomplete() -> None:
    tracker = tracker_at(3, keep=True)
    offer(tracker, 4, 6)
    resumed = tracker.resume(EventId(4))
    assert (resumed.events, resumed.complete) == (("event 6",), False)


def test_events_behind_an_incomplete_state_are_kept_for_the_next() -> None:
    tracker = tracker_at(3, keep=True)
    offer(tracker, 4, 6)
    tracker.resume(EventId(4))
    offer(tracker, 7)
    assert tracker.resume(EventId(6)).events == ("event 7",)


def test_events_that_were_not_kept_make_a_late_state_incomplete() -> None:
    tracker = tracker_at(3)
    offer(tracker, 4, 5)
    assert not tracker.resume(EventId(4)).complete


def test_only_so_many_events_are_kept() -> None:
    tracker = tracker_at(-1, keep=True)
    offer(tracker, *range(5000))
    resumed = tracker.resume(EventId(100))
    # The latest 4,096 of the events 0 to 4,999.
    assert (len(resumed.events), resumed.events[0], resumed.complete) == (4096, "event 904", False)


def test_a_promised_event_is_overdue_when_it_has_not_come_in_time() -> None:
    tracker = tracker_at(3)
    tracker.promise(EventId(5), due_at_s=10.0)
    assert not tracker.is_overdue(9.9)
    assert tracker.is_overdue(10.0)
    offer(tracker, 4)
    assert tracker.is_overdue(10.0)
    offer(tracker, 5)
    assert not tracker.is_overdue(10.0)


def test_the_latest_promise_counts() -> None:
    tracker = tracker_at(3)
    tracker.promise(EventId(5), due_at_s=10.0)
    tracker.promise(EventId(4), due_at_s=1.0)
    assert not tracker.is_overdue(9.9)


def test_a_promise_that_is_kept_already_is_never_overdue() -> None:
    tracker = tracker_at(3)
    tracker.promise(EventId(3), due_at_s=0.0)
    assert not tracker.is_overdue(99.0)
