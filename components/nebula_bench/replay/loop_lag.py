"""How late this process's event loop runs: whether the machine kept time."""

import asyncio
import time

_PERIOD_S = 0.01


class LoopLagMeter:
    """Sleeps a fixed time again and again, and keeps how much longer each sleep took.

    Use as an async context manager around what is measured.
    """

    def __init__(self) -> None:
        self.lags_s: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "LoopLagMeter":
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _tick(self) -> None:
        while True:
            asleep_s = time.perf_counter()
            await asyncio.sleep(_PERIOD_S)
            self.lags_s.append(max(0.0, time.perf_counter() - asleep_s - _PERIOD_S))
