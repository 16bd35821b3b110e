"""What is remembered of what really happened."""

import pytest

from nebula_bench.cluster.worker_log import WorkerLog
from nebula_protocol.events import PicEvent, PicEventData, SegmentRemoved, SegmentStored, StoreCleared
from nebula_protocol.ids import DomainId, EventId, Origin, RemovalReason, SegmentHash, WorkerId

ONE, TWO = WorkerId(1), WorkerId(2)
SEGMENT = SegmentHash(b"segment")
DOMAIN = DomainId("domain")
STORED = SegmentStored(segment_hash=SEGMENT, domain_id=DOMAIN, num_tokens=32, origin=Origin.ALONE)
REMOVED = SegmentRemoved(segment_hash=SEGMENT, domain_id=DOMAIN, reason=RemovalReason.CAPACITY)


def log_of(*happened: tuple[WorkerId, PicEventData, float]) -> WorkerLog:
    log = WorkerLog()
    for worker, data, now_s in happened:
        log.record_events(worker, [PicEvent(event_id=EventId(0), data=data)], now_s)
    return log


def test_a_segment_is_stored_from_its_event_to_its_removal() -> None:
    log = log_of((ONE, STORED, 1.0), (ONE, REMOVED, 3.0))
    assert [log.is_stored(SEGMENT, at_s) for at_s in (0.9, 1.0, 2.9, 3.0)] == [False, True, True, False]


def test_a_segment_is_stored_as_long_as_anybody_has_it() -> None:
    log = log_of((ONE, STORED, 1.0), (TWO, STORED, 2.0), (ONE, REMOVED, 3.0))
    assert log.is_stored(SEGMENT, 3.5)


def test_a_better_copy_in_the_place_of_another_counts_once() -> None:
    log = log_of((ONE, STORED, 1.0), (ONE, STORED, 2.0), (ONE, REMOVED, 3.0))
    assert not log.is_stored(SEGMENT, 3.5)


def test_a_cleared_store_and_a_dead_worker_have_nothing() -> None:
    log = log_of((ONE, STORED, 1.0), (TWO, STORED, 1.0), (ONE, StoreCleared(), 2.0))
    assert log.is_stored(SEGMENT, 2.5)
    log.record_crash(TWO, 3.0)
    assert not log.is_stored(SEGMENT, 3.5)


def test_only_the_part_of_a_step_inside_the_window_is_busy_time() -> None:
    log = WorkerLog()
    log.record_step(ONE, 1.0, 2.0)
    log.record_step(TWO, 2.5, 1.0)
    # From 2 to 3: one second of the first worker's step, half a second of the second's.
    assert log.busy_s(2.0, 3.0) == pytest.approx(1.5)
    assert log.busy_s(4.0, 9.0) == 0.0
