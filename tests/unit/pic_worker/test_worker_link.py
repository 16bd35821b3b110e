import pytest

from nebula_protocol.cost import LinkFit
from pic_worker.core.link import Link
from pic_worker.core.stream import Production, Stream

FIT = LinkFit(floor_s=0.5, bytes_per_s=100.0)


def test_a_transfer_takes_the_floor_and_its_bytes() -> None:
    assert Link(FIT).reserve(200, now_s=1.0) == pytest.approx(1.0 + 2.0 + 0.5)


def test_the_second_transfer_waits_for_the_first_ones_bytes_but_not_for_its_floor() -> None:
    link = Link(FIT)
    link.reserve(200, now_s=0.0)
    assert link.free_in_s(0.5) == pytest.approx(1.5)
    # Free at 2.0, 1 s of bytes, half a second of floor.
    assert link.reserve(100, now_s=0.5) == pytest.approx(2.0 + 1.0 + 0.5)


def test_a_finish_time_once_given_does_not_change() -> None:
    link, alone = Link(FIT), Link(FIT)
    first_s = link.reserve(100, now_s=0.0)
    link.reserve(900, now_s=0.0)
    assert first_s == alone.reserve(100, now_s=0.0)


def test_an_idle_link_is_used_at_once_again() -> None:
    link = Link(FIT)
    link.reserve(100, now_s=0.0)
    assert link.free_in_s(5.0) == 0.0
    assert link.reserve(100, now_s=5.0) == pytest.approx(6.5)


def test_receiving_on_an_idle_link_adds_nothing_to_the_senders_time() -> None:
    assert Link(FIT).receive(200, now_s=3.0) == 3.0


def test_bytes_of_two_senders_that_arrive_together_share_the_receivers_link() -> None:
    link = Link(FIT)
    assert link.receive(200, now_s=3.0) == 3.0
    # The link was busy from 1.0 to 3.0 with the first; the second's 2 s of bytes come after that.
    assert link.receive(200, now_s=3.0) == pytest.approx(5.0)


def test_a_copy_comes_piece_by_piece() -> None:
    # 2 s of bytes in 4 pieces behind half a second of floor.
    stream = Link(FIT).stream(200, 4, None, now_s=1.0)
    assert tuple(stream) == pytest.approx((2.0, 3.5))


def test_what_is_being_computed_leaves_as_it_is_computed() -> None:
    stream = Link(FIT).stream(200, 4, Production(1.0, 9.0), now_s=1.0)
    # The first of 4 layers is computed at 3, the last at 9; each takes half a second, and as long to travel.
    assert tuple(stream) == pytest.approx((4.0, 10.0))


def test_a_link_that_is_slower_than_the_computation_sends_after_it() -> None:
    stream = Link(FIT).stream(1000, 4, Production(1.0, 2.0), now_s=1.0)
    assert stream.last_at_s == pytest.approx(11.5)


def test_streams_into_an_idle_link_come_as_they_are_sent_and_share_a_busy_one() -> None:
    link = Link(FIT)
    sent = Link(FIT).stream(200, 4, None, now_s=1.0)
    assert link.take(200, sent, 1.0) == sent
    # Another sender's 200 bytes at the same time: 2 s more.
    assert link.take(200, sent, 1.0).last_at_s == pytest.approx(5.5)


def test_slow_streams_flow_side_by_side() -> None:
    link, slow = Link(FIT), Stream(2.0, 21.0)
    assert link.take(200, slow, 1.0) == slow
    assert link.take(200, slow, 1.0) == slow


def test_what_has_been_sent_already_is_taken_in_behind_what_has_come_before() -> None:
    link = Link(FIT)
    assert link.take(200, Stream(3.0, 3.0), 3.0).last_at_s == pytest.approx(3.0)
    assert link.take(200, Stream(3.0, 3.0), 3.0).last_at_s == pytest.approx(5.0)
