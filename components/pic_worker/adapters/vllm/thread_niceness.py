"""Puts threads that a library starts behind the ones that compute."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OWN_TASKS = Path("/proc/self/task")


@contextmanager
def new_threads_give_way(niceness: int) -> Iterator[None]:
    """Threads of this process that come into being inside get this niceness, 0 to 19; Linux keeps one for each thread.

    0 leaves them alone.
    """
    before = _thread_ids()
    yield
    if niceness:
        for thread_id in _thread_ids() - before:
            # It may have ended meanwhile.
            with suppress(ProcessLookupError):
                os.setpriority(os.PRIO_PROCESS, thread_id, niceness)


def _thread_ids() -> set[int]:
    return {int(task.name) for task in _OWN_TASKS.iterdir()}
