import os
import threading

from pic_worker.adapters.vllm.thread_niceness import new_threads_give_way


class WaitingThread:
    def __init__(self) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._end.wait)
        self._thread.start()

    def niceness(self) -> int:
        assert self._thread.native_id is not None
        return os.getpriority(os.PRIO_PROCESS, self._thread.native_id)

    def end(self) -> None:
        self._end.set()
        self._thread.join()


def test_only_threads_from_inside_give_way() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    before = WaitingThread()
    with new_threads_give_way(19):
        inside = WaitingThread()
    behind = WaitingThread()
    try:
        assert (before.niceness(), inside.niceness(), behind.niceness()) == (own, 19, own)
    finally:
        for thread in (before, inside, behind):
            thread.end()


def test_a_niceness_of_zero_leaves_threads_alone() -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with new_threads_give_way(0):
        inside = WaitingThread()
    try:
        assert inside.niceness() == own
    finally:
        inside.end()
