"""How loads share out the steps."""

from pic_worker.core.load_queue import LoadChunk, LoadQueue, Start


def begin(queue: LoadQueue, request_id: str, num_tokens: int) -> Start:
    start = queue.when(num_tokens)
    if start is not Start.LATER:
        queue.begin(request_id, num_tokens, start)
    return start


def test_a_load_that_fits_into_the_step_is_done_at_once() -> None:
    queue = LoadQueue(10)
    assert begin(queue, "a", 10) is Start.AT_ONCE
    assert queue.take_step() == [LoadChunk("a", 0, 10, True, False)]
    assert queue.take_step() == []


def test_a_larger_load_is_spread_over_steps() -> None:
    queue = LoadQueue(10)
    assert begin(queue, "a", 25) is Start.OVER_STEPS
    assert queue.take_step() == [LoadChunk("a", 0, 10, False, True)]
    assert queue.take_step() == [LoadChunk("a", 10, 10, False, True)]
    assert queue.take_step() == [LoadChunk("a", 20, 5, True, True)]
    assert queue.num_over_steps == 0


def test_short_loads_get_half_of_the_step_beside_a_long_one() -> None:
    queue = LoadQueue(10)
    begin(queue, "long", 100)
    queue.take_step()
    assert begin(queue, "short", 5) is Start.AT_ONCE
    assert begin(queue, "next", 1) is Start.LATER
    assert queue.take_step() == [LoadChunk("short", 0, 5, True, False), LoadChunk("long", 10, 5, False, True)]


def test_a_second_long_load_waits_for_the_first() -> None:
    queue = LoadQueue(10)
    begin(queue, "a", 25)
    assert begin(queue, "b", 25) is Start.LATER
    queue.take_step()
    queue.take_step()
    assert begin(queue, "b", 25) is Start.OVER_STEPS
    assert queue.take_step() == [LoadChunk("a", 20, 5, True, True), LoadChunk("b", 0, 5, False, True)]


def test_a_load_without_tokens_to_compute_never_waits() -> None:
    queue = LoadQueue(10)
    begin(queue, "a", 100)
    begin(queue, "b", 5)
    assert begin(queue, "c", 0) is Start.AT_ONCE
    assert LoadChunk("c", 0, 0, True, False) in queue.take_step()


def test_a_forgotten_load_takes_no_more_of_any_step() -> None:
    queue = LoadQueue(10)
    begin(queue, "a", 25)
    queue.take_step()
    assert queue.forget("a")
    assert not queue.forget("a")
    assert queue.take_step() == []


def test_a_load_whose_last_chunk_was_taken_is_not_there_to_be_forgotten() -> None:
    queue = LoadQueue(10)
    begin(queue, "a", 12)
    queue.take_step()
    queue.take_step()
    assert not queue.forget("a")
