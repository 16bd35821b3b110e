"""Waiting for segments that are being produced."""

import asyncio

from support.data_store import key_of, tokens_of

from pic_worker.segment_arrivals import SegmentArrivals

KEY = key_of(tokens_of(1, 4))
OTHER = key_of(tokens_of(2, 4))


class Time:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def waiting(arrivals: SegmentArrivals, wait_s: float = 60.0, grace_s: float = 60.0) -> "asyncio.Task[bool]":
    task = asyncio.create_task(arrivals.wait(KEY, wait_s=wait_s, grace_s=grace_s))
    await asyncio.sleep(0)
    return task


async def test_whoever_waits_hears_that_the_segment_is_stored() -> None:
    arrivals = SegmentArrivals(Time())
    arrivals.begin(KEY)
    tasks = [await waiting(arrivals) for _ in range(2)]
    arrivals.stored(OTHER)
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    arrivals.stored(KEY)
    arrivals.end(KEY)
    assert await asyncio.gather(*tasks) == [True, True]


async def test_the_last_producer_that_gives_up_ends_the_wait() -> None:
    arrivals = SegmentArrivals(Time())
    arrivals.begin(KEY)
    arrivals.begin(KEY)
    task = await waiting(arrivals)
    arrivals.end(KEY)
    await asyncio.sleep(0)
    assert not task.done()
    arrivals.end(KEY)
    assert not await task
    assert not arrivals.is_coming(KEY)


async def test_a_producer_that_begins_within_the_grace_is_waited_for() -> None:
    time = Time()
    arrivals = SegmentArrivals(time)
    task = await waiting(arrivals, wait_s=60.0, grace_s=1.0)
    arrivals.begin(KEY)
    for _ in range(3):
        await asyncio.sleep(0)
    time.now_s = 30.0
    assert not task.done()
    arrivals.stored(KEY)
    assert await task


async def test_what_nobody_produces_is_not_waited_for_without_grace() -> None:
    arrivals = SegmentArrivals(Time())
    assert not await arrivals.wait(KEY, wait_s=60.0, grace_s=0.0)


async def test_who_stops_waiting_leaves_nothing_behind() -> None:
    arrivals = SegmentArrivals(Time())
    arrivals.begin(KEY)
    task = await waiting(arrivals)
    task.cancel()
    await asyncio.wait((task,))
    arrivals.stored(KEY)
    arrivals.end(KEY)
    assert not arrivals.is_coming(KEY)
