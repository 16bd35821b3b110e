"""Children that die with their parent, even when that is killed with SIGKILL."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> Callable[[], None] | None:
    """What a child runs between fork and exec, or None where the system has nothing of the kind.

    The kernel sends the signal when the *thread* that forked ends, so children must be started from the main thread.
    It is not inherited: processes that the child starts itself do not have it.
    """
    if sys.platform != "linux":
        return None
    # Loaded here: between fork and exec, nothing may wait for a lock that another thread held at the fork.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent_pid = os.getpid()

    def request_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent_pid:
            # The parent died before the request: nobody would send the signal any more.
            os._exit(1)

    return request_death_signal
