"""The request path: decide, dispatch, learn from the receipt, hand the reply on. Dynamo's frontend does the rest."""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing

import structlog

from nebula_protocol.codec import to_plain
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.plan import HELPER_TASK_KEY, PLAN_KEY
from nebula_router.decide import Decided, HelperDispatch, RouterState
from nebula_router.errors import NoWorkerError, WorkerGoneError, WorkerRefusedError, WorkersLostError
from nebula_router.metrics import RouterMetrics
from nebula_router.ports import Clock, DecisionSink, JsonObject, Origin, WorkerPool
from nebula_router.prefilled import Prefilled
from nebula_router.replicas import Replicas
from nebula_router.request import RoutedRequest
from nebula_router.settings import RouterSettings

log = structlog.get_logger()

MAX_LOSSES = 2
"""Workers that one request may lose. A prompt that kills workers must not take the fleet."""
_WORKER_POLL_S = 0.05


class RouterService:
    """Prefills tokenized requests. One event loop, no locks: between snapshot and record nothing is awaited."""

    def __init__(
        self,
        settings: RouterSettings,
        *,
        state: RouterState,
        prefill_pool: WorkerPool,
        decisions: DecisionSink | None,
        metrics: RouterMetrics,
        clock: Clock,
        replicas: Replicas | None = None,
        vocabulary_tokens: int | None = None,
    ) -> None:
        """
        Args:
            replicas: The other routers of the pool; None where there can be none.
        """
        self._settings = settings
        self._vocabulary_tokens = vocabulary_tokens
        self._state = state
        self._prefill_pool = prefill_pool
        self._decisions = decisions
        self._metrics = metrics
        self._clock = clock
        self._replicas = replicas
        self._running: set[RequestId] = set()
        self._background: set[asyncio.Task[None]] = set()

    @property
    def num_running(self) -> int:
        """Requests that are being served."""
        return len(self._running)

    async def handle(self, body: JsonObject, request_id: RequestId, origin: Origin = None) -> JsonObject:
        """The prefill worker's reply: first token and handover. A worker that dies on the way costs time.

        Cancelled, it stops the worker and the helpers at once and frees what was recorded for the request.

        Raises:
            BadRequestError: the request itself is wrong.
            NoWorkerError: nobody came to serve it in time.
            WorkersLostError: it lost as many workers as a request may.
            WorkerRefusedError: a worker answered with an error of its own.
        """
        started_s = self._clock()
        await self._some_worker(started_s)
        request = RoutedRequest.read(
            body, self._unused_id(request_id), self._state.context_tokens, self._vocabulary_tokens
        )
        self._running.add(request.request_id)
        try:
            prefilled = await self._prefill_somewhere(request, origin, started_s)
        finally:
            self._running.remove(request.request_id)
        self._metrics.observe_ttft(self._clock() - started_s)
        return prefilled.chunk

    async def _prefill_somewhere(self, request: RoutedRequest, origin: Origin, started_s: float) -> Prefilled:
        lost: list[WorkerGoneError] = []
        while True:
            await self._some_worker(started_s)
            # Of workers that came back only those that did not break this request, unless there are no others.
            excluded = frozenset(error.worker_id for error in lost)
            if not self._state.worker_ids() - excluded:
                excluded = frozenset()
            try:
                return await self._attempt(request, excluded, attempt=len(lost) + 1, origin=origin)
            except WorkerGoneError as error:
                log.warning("worker_lost", worker_id=error.worker_id, request_id=request.request_id, reason=str(error))
                self._state.remove_worker(error.worker_id)
                lost.append(error)
                if len(lost) == MAX_LOSSES:
                    raise WorkersLostError([one.worker_id for one in lost], str(error)) from error
                self._metrics.count_retry()

    async def _some_worker(self, started_s: float) -> None:
        """Waits until there is a worker.

        Raises:
            NoWorkerError: none came in time.
        """
        while not self._state.worker_ids():
            if self._clock() - started_s >= self._settings.worker_wait_s:
                raise NoWorkerError(f"no prefill worker came within {self._settings.worker_wait_s:g} s")
            await asyncio.sleep(_WORKER_POLL_S)

    def _unused_id(self, request_id: RequestId) -> RequestId:
        """The id, or one made from it while another request has it: clients may choose ids."""
        unused, number = request_id, 1
        while unused in self._running:
            number += 1
            unused = RequestId(f"{request_id}~{number}")
        return unused

    async def _attempt(
        self, request: RoutedRequest, excluded: frozenset[WorkerId], *, attempt: int, origin: Origin
    ) -> Prefilled:
        """The prefill worker's reply. Whatever happens, the view and the load learn of it at once."""
        decided = self._state.decide(request, excluded=excluded, attempt=attempt, now_s=self._clock())
        self._announce(decided)
        helping = [self._in_background(self._help(helper, attempt, origin)) for helper in decided.helpers]
        try:
            prefilled = await self._ask(request, decided, origin)
        except BaseException:
            # Cancellation too: the worker aborts, so nothing that was expected of it will come.
            self._state.record_failure(decided, self._clock())
            if self._replicas is not None:
                self._replicas.tell_end(decided, None)
            for task in helping:
                task.cancel()
            raise
        learned = self._state.record_receipt(decided, prefilled.handover.receipt, self._clock())
        self._metrics.observe_receipt(prefilled.handover.receipt, learned)
        if self._replicas is not None:
            self._replicas.tell_end(decided, prefilled.handover.receipt)
        return prefilled

    async def _ask(self, request: RoutedRequest, decided: Decided, origin: Origin) -> Prefilled:
        worker_id = decided.plan.target.worker_id
        body = request.body_with({PLAN_KEY: to_plain(decided.plan)})
        last: JsonObject | None = None
        async with aclosing(self._prefill_pool.generate(worker_id, body, origin)) as chunks:
            async for chunk in chunks:
                last = chunk
        if last is None:
            raise WorkerGoneError(worker_id, "its prefill reply was empty")
        return Prefilled.read(worker_id, last)

    async def _help(self, helper: HelperDispatch, attempt: int, origin: Origin) -> None:
        """Has a helper compute segments alone; the target fetches them from there."""
        body: JsonObject = {
            "token_ids": helper.token_ids,
            "stop_conditions": {"max_tokens": 1},
            "extra_args": {HELPER_TASK_KEY: to_plain(helper.task)},
        }
        worker_id = helper.worker.worker_id
        try:
            async with aclosing(self._prefill_pool.generate(worker_id, body, origin, f"~helper-{attempt}")) as chunks:
                async for _ in chunks:
                    pass
        except asyncio.CancelledError:
            self._helper_ended(helper, is_done=False)
            raise
        except (WorkerGoneError, WorkerRefusedError) as error:
            log.warning("helper_failed", worker_id=worker_id, request_id=helper.task.for_request, reason=str(error))
            self._helper_ended(helper, is_done=False)
            if isinstance(error, WorkerGoneError):
                self._state.remove_worker(worker_id)
        else:
            self._helper_ended(helper, is_done=True)

    def _helper_ended(self, helper: HelperDispatch, *, is_done: bool) -> None:
        record = self._state.record_helper_done if is_done else self._state.record_helper_failure
        record(helper.task.for_request, helper.worker, self._clock())
        if self._replicas is not None:
            self._replicas.tell_helper_end(helper.task.for_request, helper.worker, is_done=is_done)

    def _announce(self, decided: Decided) -> None:
        self._metrics.observe_decision(decided)
        if self._replicas is not None:
            self._replicas.tell_dispatch(decided)
        if self._decisions is not None:
            self._in_background(self._decisions.publish_decision(decided.decision))

    def _in_background(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task
