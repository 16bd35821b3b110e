"""Lets NIXL's thread for progress sleep until there is something to do.

NIXL's Python package makes every agent with a poll that does not wait (`pthrDelay` 0, in 1.5.1 no caller can change
it), so that each agent keeps one core busy for as long as it lives. With a wait, the thread sleeps in the kernel and is
woken by the transport; measured on TCP and host memory, an idle agent then takes no time and 90 MB move no slower.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_POLL_US = 10_000


@contextmanager
def agents_sleep_when_idle() -> Iterator[None]:
    """Agents that are made inside wait for events. Without NIXL nothing happens here; making an agent tells."""
    try:
        from nixl._api import nixlBind
    except ImportError:
        yield
        return
    as_it_is: Any = nixlBind.nixlAgentConfig

    class SleepyConfig(as_it_is):  # type: ignore[misc]
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, _POLL_US if name == "pthrDelay" else value)

    nixlBind.nixlAgentConfig = SleepyConfig
    try:
        yield
    finally:
        nixlBind.nixlAgentConfig = as_it_is
