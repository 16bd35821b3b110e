"""How a command that goes on and on ends without noise."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_end() -> Iterator[None]:
    """Ctrl-C, and a reader that leaves as `| head` does, end the block as if it were done."""
    try:
        yield
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        # Python's own flush at exit must not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
