"""An event loop whose time passes only while everything waits: sleeping costs nothing, and moments are exact."""

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any


class NothingWillHappenError(Exception):
    """Every task waits for something that never comes."""


class _Selector(selectors.SelectSelector):
    """Waits for nobody: what `select` should wait, it adds to the time."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise NothingWillHappenError
            self.now_s += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Time begins at 0. A test that would hang ends with `NothingWillHappenError`."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s

    def stall(self, duration_s: float) -> None:
        """The machine was busy with something else: time has passed, and nobody could run."""
        self._clock.now_s += duration_s

    def call_exception_handler(self, context: Mapping[str, Any]) -> None:
        """Failures that nobody looks at fail the test."""
        raise context.get("exception") or RuntimeError(context["message"])


def now_s() -> float:
    """Time of the running loop."""
    return asyncio.get_running_loop().time()


def virtual_loop() -> VirtualTimeLoop:
    """The running loop.

    Raises:
        TypeError: it is another one.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise TypeError(f"{loop} keeps real time")
    return loop
