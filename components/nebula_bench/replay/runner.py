"""Replays a trace: sends each request at its time and collects what became of it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from nebula_bench.arrivals import poisson_arrivals_s
from nebula_bench.replay.completion_request import encode_completion
from nebula_bench.replay.frontend_client import FrontendClient
from nebula_bench.replay.loop_lag import LoopLagMeter
from nebula_bench.replay.outcome import RequestOutcome
from nebula_bench.replay.settings import ReplaySettings
from nebula_bench.workload import TraceRequest

# The body of the next request is made this long before its time, so that making it does not delay the sending.
_PREPARE_AHEAD_S = 0.01


@dataclass(slots=True)
class ReplayRecord:
    """Fills while the replay runs; after an interruption it holds what had finished by then."""

    outcomes: list[RequestOutcome] = field(default_factory=list)
    lag: LoopLagMeter = field(default_factory=LoopLagMeter)
    started_at_unix_s: float = 0.0
    """What the outcomes' times count from, in seconds of the epoch."""
    wall_s: float = 0.0
    is_interrupted: bool = False


class Replay:
    """One run of `trace` against the frontend that `client` reaches; `model` is what its requests ask for."""

    def __init__(
        self,
        trace: Sequence[TraceRequest],
        settings: ReplaySettings,
        client: FrontendClient,
        model: str,
        on_finished: Callable[[RequestOutcome], None] = lambda _: None,
    ) -> None:
        self._trace = trace
        self._settings = settings
        self._client = client
        self._model = model
        self._on_finished = on_finished
        self._vocabulary = settings.vocabulary
        limit = settings.concurrency_limit
        self._slots: AbstractAsyncContextManager[object] = nullcontext() if limit is None else asyncio.Semaphore(limit)
        self._start_s = 0.0
        self.record = ReplayRecord()

    async def run(self) -> None:
        """Returns when the last request has finished. When cancelled, `record` keeps what had finished."""
        arrivals_s = poisson_arrivals_s(len(self._trace), self._settings.rate_per_s, self._settings.seed)
        self._start_s = time.perf_counter()
        self.record.started_at_unix_s = time.time()
        try:
            async with self.record.lag, asyncio.TaskGroup() as tasks:
                for position, (request, arrival_s) in enumerate(zip(self._trace, arrivals_s.tolist(), strict=True)):
                    scheduled_s = arrival_s * self._settings.time_scale
                    await self._sleep_until(scheduled_s - _PREPARE_AHEAD_S)
                    body = self._encode(request)
                    await self._sleep_until(scheduled_s)
                    tasks.create_task(self._send(position, request, body, scheduled_s))
        except asyncio.CancelledError:
            self.record.is_interrupted = True
            raise
        finally:
            self.record.wall_s = self._now_s()

    def _now_s(self) -> float:
        return time.perf_counter() - self._start_s

    async def _sleep_until(self, when_s: float) -> None:
        wait_s = when_s - self._now_s()
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def _encode(self, request: TraceRequest) -> bytes:
        return encode_completion(
            request,
            model=self._model,
            max_tokens=self._settings.max_tokens,
            marks=self._settings.marks,
            annotations=self._settings.annotations,
            vocabulary=self._vocabulary,
        )

    async def _send(self, position: int, request: TraceRequest, body: bytes, scheduled_s: float) -> None:
        async with self._slots:
            sent_s = self._now_s()
            reply = await self._client.complete(body, self._settings.timeout_s * self._settings.time_scale)
        first_s = reply.first_content_s
        outcome = RequestOutcome(
            position=position,
            prompt_tokens=request.prompt_tokens,
            scheduled_s=scheduled_s,
            sent_s=sent_s,
            first_content_s=None if first_s is None else first_s - self._start_s,
            finished_s=self._now_s(),
            receipt=reply.receipt,
            error=reply.error,
        )
        self.record.outcomes.append(outcome)
        self._on_finished(outcome)
