"""The loop that tells workers how to divide their stores."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from math import isnan

from structlog.testing import capture_logs
from support.placement_case import round_card
from support.recorded_splits import RecordedReviews, RecordedSplits
from support.router_world import metric_value, new_state, state_of
from support.split_case import lookup

from nebula_protocol.events import SplitVerdict
from nebula_protocol.ids import WorkerEpoch, WorkerId
from nebula_router.control import SplitControl
from nebula_router.core.capacity import SplitController
from nebula_router.metrics import MetricName, RouterMetrics


class ControlCase:
    """Workers whose split moves after every request; loops run in virtual time."""

    def __init__(self, *workers: int) -> None:
        self.state = new_state(*map(round_card, workers), prefix_ratio=0.9, window_requests=1)
        assert self.state.split is not None
        self.split: SplitController = self.state.split
        self.sink, self.reviews = RecordedSplits(), RecordedReviews()
        self.metrics = RouterMetrics()
        self.now_s = 0.0
        self.control = self.control_with(self.reviews)

    def control_with(self, reviews: RecordedReviews | None) -> SplitControl:
        return SplitControl(
            self.split,
            state=self.state,
            sink=self.sink,
            reviews=reviews,
            metrics=self.metrics,
            clock=lambda: self.now_s,
        )

    def move(self) -> float:
        """Requests for what at most 0.7 for blocks would keep; the new share for blocks."""
        for _ in range(10):
            self.split.record_use(lookup(1, num_tokens=240_000))
        return self.split.prefix_ratio

    async def tell(self) -> Sequence[tuple[int, float]]:
        await self.control.tell_workers()
        return self.sink.take()


def set_of(messages: Sequence[tuple[int, float]]) -> set[tuple[int, float]]:
    assert len(set(messages)) == len(messages)
    return set(messages)


async def test_every_worker_is_told_once() -> None:
    case = ControlCase(1, 2)
    assert set_of(await case.tell()) == {(1, 0.9), (2, 0.9)}
    assert await case.tell() == []


async def test_every_worker_is_told_of_a_move() -> None:
    case = ControlCase(1, 2)
    await case.tell()
    ratio = case.move()
    assert ratio < 0.9
    assert set_of(await case.tell()) == {(1, ratio), (2, ratio)}
    assert await case.tell() == []


async def test_a_new_worker_is_told_alone() -> None:
    case = ControlCase(1)
    await case.tell()
    case.state.apply_state(state_of(round_card(2)), 1.0)
    assert await case.tell() == [(2, 0.9)]


async def test_a_worker_that_started_anew_under_its_id_is_told_again() -> None:
    case = ControlCase(1, 2)
    await case.tell()
    case.state.apply_state(state_of(round_card(2, epoch=WorkerEpoch(7))), 1.0)
    assert await case.tell() == [(2, 0.9)]


async def test_a_worker_that_left_is_told_nothing_and_when_it_is_back_it_is_told() -> None:
    case = ControlCase(1, 2)
    await case.tell()
    case.state.remove_worker(WorkerId(2))
    ratio = case.move()
    assert await case.tell() == [(1, ratio)]
    case.state.apply_state(state_of(round_card(2)), 1.0)
    assert await case.tell() == [(2, ratio)]


async def test_all_is_told_again_from_time_to_time_since_nobody_confirms_it() -> None:
    case = ControlCase(1, 2)
    await case.tell()
    case.now_s = 9.9
    assert await case.tell() == []
    case.now_s = 10.0
    assert set_of(await case.tell()) == {(1, 0.9), (2, 0.9)}


async def test_the_loop_goes_on_until_it_is_cancelled() -> None:
    case = ControlCase(1)
    running = asyncio.create_task(case.control.run())
    await asyncio.sleep(0.1)
    assert case.sink.take() == [(1, 0.9)]
    ratio = case.move()
    await asyncio.sleep(0.3)
    assert case.sink.take() == [(1, ratio)]
    assert case.reviews.published[-1].prefix_ratio == ratio
    running.cancel()


async def test_the_split_is_a_metric() -> None:
    case = ControlCase(1)
    value = metric_value(case.metrics, MetricName.SPLIT_PREFIX_RATIO)
    assert value is not None
    assert isnan(value)
    await case.tell()
    assert metric_value(case.metrics, MetricName.SPLIT_PREFIX_RATIO) == 0.9
    ratio = case.move()
    await case.tell()
    assert metric_value(case.metrics, MetricName.SPLIT_PREFIX_RATIO) == ratio


async def test_each_window_is_told_once_and_counted_by_its_verdict() -> None:
    case = ControlCase(1)
    await case.control.tell_readers()
    assert case.reviews.published == []
    ratio = case.move()
    await case.control.tell_readers()
    await case.control.tell_readers()
    told = case.reviews.published
    # Ten windows of one request. The first returns nothing; up to four hits are within two standard errors.
    assert [review.num_requests for review in told] == list(range(1, 11))
    assert [review.verdict for review in told[:5]] == [SplitVerdict.BEST_ALREADY, *(SplitVerdict.NOT_SURE,) * 4]
    moves = [review for review in told if review.verdict is SplitVerdict.MOVED]
    assert moves[0].from_prefix_ratio == 0.9
    assert moves[-1].prefix_ratio == ratio
    assert all(before.prefix_ratio == after.from_prefix_ratio for before, after in pairwise(moves))
    counted = {
        verdict: metric_value(case.metrics, MetricName.SPLIT_REVIEWS, verdict=verdict) for verdict in SplitVerdict
    }
    assert counted == {verdict: sum(review.verdict is verdict for review in told) for verdict in SplitVerdict}


async def test_each_move_is_a_log_event_also_when_nobody_reads() -> None:
    case = ControlCase(1)
    case.move()
    with capture_logs() as logs:
        await case.control_with(None).tell_readers()
    move = case.split.now.last_move
    assert move is not None
    assert logs[0]["from_prefix_ratio"] == 0.9
    assert logs[-1] == {
        "event": "split_moved",
        "log_level": "info",
        "from_prefix_ratio": round(move.from_prefix_ratio, 4),
        "prefix_ratio": round(move.prefix_ratio, 4),
        "gain_ratio": round(move.gain_ratio, 4),
        "ghost_prefix_tokens": 0,
        "ghost_segment_tokens": 0,
        "num_requests": move.num_requests,
    }
    assert case.reviews.published == []
