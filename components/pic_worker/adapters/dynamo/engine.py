"""The worker as an engine of `dynamo.common.backend`: Dynamo registers, drains and measures it."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import structlog
import uvloop
from dynamo.common.backend import EngineConfig, GenerateChunk, GenerateRequest, LLMEngine, LlmRegistration, Worker
from dynamo.common.backend.health_check import is_probe
from dynamo.common.backend.metrics import register_engine_registry
from dynamo.common.backend.publisher import KvEventSource, PushSource
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.constants import DisaggregationMode
from dynamo.llm.exceptions import Cancelled, InvalidArgument
from dynamo.runtime import Context, Endpoint
from msgspec import structs

from nebula_process.main_task import exit_when_failed
from nebula_process.ready_file import touch_ready_file
from nebula_protocol.handover import PREFILL_GONE, Handover
from nebula_protocol.ids import RequestId, Role, WorkerId
from pic_worker.adapters.dynamo.block_events import DynamoBlockEvents, hash_salted_blocks
from pic_worker.adapters.dynamo.requests import (
    JsonObject,
    WorkRequest,
    decode_chunk,
    helper_chunk,
    prefill_chunk,
    probe_chunk,
    read_handover,
    read_work,
)
from pic_worker.adapters.sim.build import DecodeWorker, PrefillWorker, build_decode, build_prefill
from pic_worker.errors import BadWorkError, PromptGoneError, StartError
from pic_worker.settings import WorkerSettings

if TYPE_CHECKING:
    # Made by the runtime when it is imported; there is no file to find.
    from dynamo._core.backend import EngineMetrics  # type: ignore[import-not-found]

log = structlog.get_logger()

_DEFAULT_MAX_TOKENS = 16
_DEFAULT_NATS_URL = "nats://127.0.0.1:4222"
_MODES = {Role.PREFILL: DisaggregationMode.PREFILL, Role.DECODE: DisaggregationMode.DECODE}

T = TypeVar("T")


class PicEngine(LLMEngine):
    """One worker process of either role, on the `sim` engine."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._role = Role(settings.role)
        self._block_events = DynamoBlockEvents(settings.block_size_tokens)
        self._prefill: PrefillWorker | None = None
        self._decode: DecodeWorker | None = None
        self._start_error: StartError | None = None
        self._has_started = False

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple["PicEngine", WorkerConfig]:
        """Not the way in: `run` makes the engine from settings that are read already."""
        raise NotImplementedError(f"start workers with `python -m pic_worker`, not with {argv}")

    def worker_config(self) -> WorkerConfig:
        """How Dynamo shall register this worker."""
        return WorkerConfig(
            namespace=self._settings.namespace,
            component=self._settings.component,
            model_name=str(Path(self._settings.model_path).resolve()),
            served_model_name=self._settings.model_name,
            discovery_backend=os.environ.get("DYN_DISCOVERY_BACKEND", "etcd"),
            request_plane=os.environ.get("DYN_REQUEST_PLANE", "tcp"),
            event_plane=os.environ.get("DYN_EVENT_PLANE", "nats"),
            disaggregation_mode=_MODES[self._role],
        )

    async def start(self, worker_id: int) -> EngineConfig:
        try:
            await self._build(WorkerId(worker_id))
        except StartError as error:
            self._start_error = error
            raise
        self._has_started = True
        log.info("worker_started", worker_id=worker_id, role=self._role, engine=self._settings.engine)
        settings = self._settings
        return EngineConfig(
            model=str(Path(settings.model_path).resolve()),
            served_model_name=settings.model_name,
            llm=LlmRegistration(
                context_length=settings.context_tokens,
                kv_cache_block_size=settings.block_size_tokens,
                total_kv_blocks=settings.device_capacity_tokens // settings.block_size_tokens,
                max_num_seqs=settings.max_running,
                max_num_batched_tokens=settings.max_step_tokens,
            ),
        )

    async def _build(self, worker_id: WorkerId) -> None:
        nats_url = os.environ.get("NATS_SERVER", _DEFAULT_NATS_URL)
        if self._role is Role.DECODE:
            self._decode = await build_decode(self._settings, worker_id, nats_url)
            return
        self._prefill = await build_prefill(
            self._settings,
            worker_id,
            nats_url,
            block_events=self._block_events,
            hash_salted=hash_salted_blocks,
        )
        exit_when_failed(self._prefill.loop)

    def why_not_started(self, error: Exception) -> StartError | None:
        """What kept it from starting, given what Dynamo raised in the end; None if it had started."""
        if self._has_started:
            return None
        return self._start_error or StartError(str(error))

    async def kv_event_sources(self) -> list[KvEventSource]:
        if self._role is Role.DECODE:
            return []
        return [PushSource(on_ready=self._block_events.attach, dp_rank=0)]

    async def register_prometheus(self, metrics: "EngineMetrics") -> None:
        if self._prefill is not None:
            register_engine_registry(metrics, self._prefill.metrics.registry)

    async def on_endpoint_ready(self, endpoint: Endpoint) -> None:
        touch_ready_file()

    async def is_quiescent(self) -> bool:
        """Whether no prompt's KV waits for its decode worker, so that this process may end."""
        return self._prefill is None or self._prefill.service.is_quiescent()

    async def cleanup(self) -> None:
        for worker in (self._prefill, self._decode):
            if worker is not None:
                await worker.close()
        self._prefill = self._decode = None

    async def generate(self, request: GenerateRequest, context: Context) -> AsyncGenerator[GenerateChunk, None]:
        try:
            async for chunk in self._serve(request, context):
                yield cast("GenerateChunk", chunk)
        except BadWorkError as error:
            raise InvalidArgument(str(error)) from error
        except PromptGoneError as error:
            raise RuntimeError(f"{PREFILL_GONE}: {error}") from error

    async def _serve(self, request: GenerateRequest, context: Context) -> AsyncIterator[JsonObject]:
        if is_probe(request):
            yield probe_chunk()
        elif self._prefill is not None:
            yield await _unless_stopped(_prefill(self._prefill, read_work(request), context), context)
        elif self._decode is not None:
            async for chunk in _decode(self._decode, read_work(request), read_handover(request), context):
                yield chunk


def run(settings: WorkerSettings) -> None:
    """Serves as one worker until Dynamo's runtime is shut down.

    Raises:
        StartError: a setting or a service that it needs is missing.
    """
    engine = PicEngine(settings)
    try:
        uvloop.run(Worker(engine, engine.worker_config()).run())
    except Exception as error:
        # Dynamo wraps everything, what `start` raised too, into a bare Exception.
        start_error = engine.why_not_started(error)
        if start_error is None:
            raise
        raise start_error from error


async def _prefill(worker: PrefillWorker, work: WorkRequest, context: Context) -> JsonObject:
    """The reply to a prompt or to a helper's task."""
    if work.helper_task is not None:
        helper_id = RequestId(f"{work.helper_task.for_request}/helper")
        await worker.service.help(worker.cutter.helper_request(helper_id, work.helper_task, work.tokens))
        return helper_chunk()
    request_id = RequestId(context.id()) if work.plan is None else work.plan.request_id
    request = worker.cutter.engine_request(request_id, work.tokens, work.options, work.plan)
    answered_tokens = 0 if work.plan is None else work.plan.answered_tokens
    handover = structs.replace(await worker.service.prefill(request), answered_tokens=answered_tokens)
    return prefill_chunk(worker.answer_token(answered_tokens), handover)


async def _decode(
    worker: DecodeWorker, work: WorkRequest, handover: Handover, context: Context
) -> AsyncIterator[JsonObject]:
    """The answer's tokens behind those that the request brings already."""
    await _unless_stopped(worker.service.take_over(handover), context)
    num_prompt_tokens = handover.prompt_tokens
    num_before = len(work.tokens) - num_prompt_tokens + handover.answered_tokens
    num_tokens = work.max_tokens if work.max_tokens is not None else _DEFAULT_MAX_TOKENS
    num_sent = 0
    async for token_id in worker.service.tokens(num_before=num_before, num_tokens=num_tokens):
        if context.is_stopped():
            return
        num_sent += 1
        yield decode_chunk(
            token_id,
            num_prompt_tokens=num_prompt_tokens,
            num_sent=num_sent,
            last=num_sent == num_tokens,
            first_of=handover if num_sent == 1 else None,
        )


async def _unless_stopped(work: Coroutine[object, object, T], context: Context) -> T:
    """The result of `work`, which is cancelled when the client goes away.

    Raises:
        Cancelled: the client went away first.
    """
    working = asyncio.ensure_future(work)
    stopped = asyncio.ensure_future(context.async_killed_or_stopped())
    try:
        await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Cancelled("the client went away")
        return working.result()
    finally:
        working.cancel()
        stopped.cancel()
