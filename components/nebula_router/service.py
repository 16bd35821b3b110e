"""The request path: decide, dispatch, hand over to decode, learn from the receipt."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing

import structlog

from nebula_protocol.codec import to_plain
from nebula_protocol.handover import PREFILL_GONE
from nebula_protocol.ids import RequestId, WorkerId
from nebula_protocol.plan import HELPER_TASK_KEY, PLAN_KEY
from nebula_router.answer import Answer, Prefilled
from nebula_router.core.decode_choice import DecodeChoice
from nebula_router.decide import Decided, HelperDispatch, RouterState
from nebula_router.errors import NoWorkerError, WorkerGoneError, WorkerRefusedError
from nebula_router.metrics import RouterMetrics
from nebula_router.ports import Clock, DecisionSink, JsonObject, WorkerPool
from nebula_router.request import RoutedRequest
from nebula_router.settings import RouterSettings

log = structlog.get_logger()


class RouterService:
    """Serves tokenized requests. One event loop, no locks: between snapshot and record nothing is awaited."""

    def __init__(
        self,
        settings: RouterSettings,
        *,
        state: RouterState,
        prefill_pool: WorkerPool,
        decode_pool: WorkerPool,
        decisions: DecisionSink | None,
        metrics: RouterMetrics,
        clock: Clock,
        vocabulary_tokens: int | None = None,
    ) -> None:
        self._settings = settings
        self._vocabulary_tokens = vocabulary_tokens
        self._state = state
        self._prefill_pool = prefill_pool
        self._decode_pool = decode_pool
        self._decisions = decisions
        self._metrics = metrics
        self._clock = clock
        self._decode_choice = DecodeChoice()
        self._running: set[RequestId] = set()
        self._background: set[asyncio.Task[None]] = set()

    async def handle(self, body: JsonObject, request_id: RequestId) -> AsyncGenerator[JsonObject, None]:
        """The answer's chunks. Workers that die on the way cost time, not the answer.

        Closed or cancelled before the end, it stops the workers at once and frees what was recorded for the request.

        Raises:
            BadRequestError: the request itself is wrong.
            NoWorkerError: nobody is left to serve it.
            WorkerRefusedError: a worker answered with an error of its own.
        """
        if not self._state.worker_ids():
            raise NoWorkerError("no prefill worker is known yet")
        request = RoutedRequest.read(
            body, self._unused_id(request_id), self._state.context_tokens, self._vocabulary_tokens
        )
        self._running.add(request.request_id)
        try:
            async with aclosing(self._answer(Answer(request))) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self._running.remove(request.request_id)

    async def _answer(self, answer: Answer) -> AsyncGenerator[JsonObject, None]:
        excluded: set[WorkerId] = set()
        for attempt in range(1, self._settings.max_attempts + 1):
            if attempt > 1:
                self._metrics.count_retry()
            try:
                async with aclosing(self._attempt(answer, frozenset(excluded), attempt)) as chunks:
                    async for chunk in chunks:
                        yield chunk
            except WorkerGoneError as error:
                request_id = answer.request.request_id
                log.warning("worker_lost", worker_id=error.worker_id, request_id=request_id, reason=str(error))
                self._lose_worker(error.worker_id)
                excluded.add(error.worker_id)
            if answer.finished:
                return
        raise NoWorkerError(f"{self._settings.max_attempts} attempts ended with a lost worker")

    async def _attempt(
        self, answer: Answer, excluded: frozenset[WorkerId], attempt: int
    ) -> AsyncGenerator[JsonObject, None]:
        started_s = self._clock()
        request = answer.request
        decode_worker_id = self._choose_decode(request, excluded)
        try:
            decided = self._state.decide(request, excluded=excluded, attempt=attempt, now_s=started_s)
            self._announce(decided)
            prefilled = await self._prefill(request, decided)
            self._metrics.observe_ttft(self._clock() - started_s)
            yield answer.first_chunk(prefilled, decode_worker_id)
            if answer.finished or decode_worker_id is None:
                return
            async with aclosing(self._decode(answer.request, prefilled, decode_worker_id)) as chunks:
                async for decoded in chunks:
                    if not answer.finished:
                        yield answer.next_chunk(decoded)
            if not answer.finished:
                raise WorkerGoneError(decode_worker_id, "its answer ended without a reason")
        finally:
            self._decode_choice.record_end(request.request_id)

    def _unused_id(self, request_id: RequestId) -> RequestId:
        """The id, or one made from it while another request has it: clients may choose ids."""
        unused, number = request_id, 1
        while unused in self._running:
            number += 1
            unused = RequestId(f"{request_id}~{number}")
        return unused

    def _choose_decode(self, request: RoutedRequest, excluded: frozenset[WorkerId]) -> WorkerId | None:
        if request.remaining_tokens == 1:
            return None
        chosen = self._decode_choice.choose(
            request.request_id,
            self._decode_pool.live_workers() - excluded,
            num_tokens=len(request.token_ids),
            now_s=self._clock(),
        )
        if chosen is None:
            raise NoWorkerError("no decode worker is alive")
        return chosen

    async def _prefill(self, request: RoutedRequest, decided: Decided) -> Prefilled:
        """The prefill worker's reply. Whatever happens, the view and the load learn of it at once."""
        for helper in decided.helpers:
            self._in_background(self._help(helper))
        worker_id = decided.plan.target.worker_id
        body = request.body_for(max_tokens=1, extra_args={PLAN_KEY: to_plain(decided.plan)})
        try:
            last: JsonObject | None = None
            async with aclosing(self._prefill_pool.generate(worker_id, body)) as chunks:
                async for chunk in chunks:
                    last = chunk
            if last is None:
                raise WorkerGoneError(worker_id, "its prefill reply was empty")
            prefilled = Prefilled.read(worker_id, last)
        except BaseException:
            # Cancellation too: the worker aborts, so nothing that was expected of it will come.
            self._state.record_failure(decided, self._clock())
            raise
        learned = self._state.record_receipt(decided, prefilled.handover.receipt, self._clock())
        self._metrics.observe_receipt(prefilled.handover.receipt, learned)
        return prefilled

    async def _help(self, helper: HelperDispatch) -> None:
        """Has a helper compute segments alone; the target fetches them from there."""
        body: JsonObject = {
            "token_ids": helper.token_ids,
            "stop_conditions": {"max_tokens": 1},
            "extra_args": {HELPER_TASK_KEY: to_plain(helper.task)},
        }
        worker_id = helper.worker.worker_id
        try:
            async with aclosing(self._prefill_pool.generate(worker_id, body)) as chunks:
                async for _ in chunks:
                    pass
        except (WorkerGoneError, WorkerRefusedError) as error:
            log.warning("helper_failed", worker_id=worker_id, request_id=helper.task.for_request, reason=str(error))
            self._state.record_helper_failure(helper, self._clock())
            if isinstance(error, WorkerGoneError):
                self._lose_worker(worker_id)
        else:
            self._state.record_helper_done(helper, self._clock())

    async def _decode(
        self, request: RoutedRequest, prefilled: Prefilled, worker_id: WorkerId
    ) -> AsyncGenerator[JsonObject, None]:
        body = request.body_for(max_tokens=request.remaining_tokens, extra_args={})
        body["prefill_result"] = {"disaggregated_params": prefilled.disaggregated_params}
        try:
            async with aclosing(self._decode_pool.generate(worker_id, body)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except WorkerRefusedError as error:
            if PREFILL_GONE in error.reason:
                raise WorkerGoneError(prefilled.handover.prefill_worker_id, error.reason) from error
            raise

    def _announce(self, decided: Decided) -> None:
        self._metrics.observe_decision(decided)
        if self._decisions is not None:
            self._in_background(self._decisions.publish_decision(decided.decision))

    def _lose_worker(self, worker_id: WorkerId) -> None:
        self._state.remove_worker(worker_id)
        self._decode_choice.suspect(worker_id, self._clock())

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
