"""The worker as an engine of `dynamo.common.backend`: Dynamo registers, drains and measures it."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, cast

import structlog
import uvloop
from dynamo.common.backend import EngineConfig, GenerateChunk, GenerateRequest, LLMEngine, LlmRegistration, Worker
from dynamo.common.backend.health_check import is_probe
from dynamo.common.backend.metrics import register_engine_registry, register_global_registry
from dynamo.common.backend.publisher import KvEventSource, PushSource
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.constants import DisaggregationMode
from dynamo.llm.exceptions import Cancelled, InvalidArgument
from dynamo.runtime import Context, Endpoint

from nebula_nats.connection import ensure_reachable
from nebula_process.main_task import exit_when_failed
from nebula_process.model_vocabulary import read_vocabulary_tokens
from nebula_process.ready_file import touch_ready_file
from nebula_protocol.handover import Handover, Sampled
from nebula_protocol.ids import RequestId, Role, WorkerId
from pic_worker.adapters.dynamo.block_events import DynamoBlockEvents, hash_salted_blocks
from pic_worker.adapters.dynamo.requests import (
    JsonObject,
    decode_chunk,
    helper_chunk,
    prefill_chunk,
    probe_chunk,
    read_handover,
    read_work,
)
from pic_worker.adapters.engines import build_decode, build_prefill
from pic_worker.errors import BadWorkError, StartError
from pic_worker.ports import DecodeWorker, PrefillWorker
from pic_worker.settings import WorkerSettings
from pic_worker.work import WorkRequest

if TYPE_CHECKING:
    # Made by the runtime when it is imported; there is no file to find.
    from dynamo._core.backend import EngineMetrics  # type: ignore[import-not-found]

log = structlog.get_logger()

_DEFAULT_NATS_URL = "nats://127.0.0.1:4222"
_MODES = {Role.PREFILL: DisaggregationMode.PREFILL, Role.DECODE: DisaggregationMode.DECODE}

_DRAIN_POLL_S = 0.05

T = TypeVar("T")


class PicEngine(LLMEngine):
    """One worker process of either role, on either engine."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._role = Role(settings.role)
        self._vocabulary_tokens = read_vocabulary_tokens(settings.model_path)
        self._block_events = DynamoBlockEvents(settings.block_size_tokens)
        self._prefill: PrefillWorker | None = None
        self._decode: DecodeWorker | None = None
        self._start_error: StartError | None = None
        self._has_started = False
        self._worker_id = WorkerId(0)
        self._num_running = 0

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
            tool_call_parser=self._settings.tool_call_parser,
            reasoning_parser=self._settings.reasoning_parser,
        )

    async def start(self, worker_id: int) -> EngineConfig:
        self._worker_id = WorkerId(worker_id)
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
                total_kv_blocks=self._worker.device_capacity_tokens // settings.block_size_tokens,
                max_num_seqs=settings.max_running,
                max_num_batched_tokens=settings.max_step_tokens,
            ),
        )

    async def _build(self, worker_id: WorkerId) -> None:
        nats_url = _nats_url()
        if self._role is Role.DECODE:
            self._decode = await build_decode(self._settings, worker_id, nats_url)
        else:
            self._prefill = await build_prefill(
                self._settings,
                worker_id,
                nats_url,
                block_events=self._block_events,
                hash_salted=hash_salted_blocks,
            )
        if self._worker.main_task is not None:
            exit_when_failed(self._worker.main_task)

    @property
    def _worker(self) -> PrefillWorker | DecodeWorker:
        worker = self._prefill or self._decode
        if worker is None:
            raise StartError("the worker has not started")
        return worker

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
        if self._worker.registry is not None:
            register_engine_registry(metrics, self._worker.registry)
        if self._settings.engine == "vllm":
            register_global_registry(metrics, engine_prefix="vllm:")

    async def on_endpoint_ready(self, endpoint: Endpoint) -> None:
        touch_ready_file()

    async def is_quiescent(self) -> bool:
        """Whether no prompt's KV waits for its decode worker, so that this process may end."""
        return self._prefill is None or self._prefill.is_quiescent()

    async def cleanup(self) -> None:
        """Finishes what runs, for `drain_s` at most.

        Here, since Dynamo has left discovery by now, and asks only prefill workers whether they are done.
        """
        deadline_s = asyncio.get_running_loop().time() + self._settings.drain_s
        while self._num_running and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(_DRAIN_POLL_S)
        if self._num_running:
            log.warning("requests_cut_short", num_requests=self._num_running, drain_s=self._settings.drain_s)
        for worker in (self._prefill, self._decode):
            if worker is not None:
                await worker.close()
        self._prefill = self._decode = None

    async def generate(self, request: GenerateRequest, context: Context) -> AsyncGenerator[GenerateChunk, None]:
        self._num_running += 1
        try:
            async for chunk in self._serve(request, context):
                yield cast("GenerateChunk", chunk)
        except BadWorkError as error:
            raise InvalidArgument(str(error)) from error
        finally:
            self._num_running -= 1

    async def _serve(self, request: GenerateRequest, context: Context) -> AsyncIterator[JsonObject]:
        if is_probe(request):
            yield probe_chunk()
        elif self._prefill is not None:
            yield await _prefill(self._prefill, read_work(request, self._vocabulary_tokens), context)
        elif self._decode is not None:
            work = read_work(request, self._vocabulary_tokens)
            async for chunk in _decode(self._decode, work, read_handover(request), context, self._worker_id):
                yield chunk


def run(settings: WorkerSettings) -> None:
    """Serves as one worker until Dynamo's runtime is shut down.

    Raises:
        StartError: a setting or a service that it needs is missing.
    """
    engine = PicEngine(settings)
    try:
        uvloop.run(_serve(engine))
    except Exception as error:
        # Dynamo wraps everything, what `start` raised too, into a bare Exception.
        start_error = engine.why_not_started(error)
        if start_error is None:
            raise
        raise start_error from error


async def _serve(engine: PicEngine) -> None:
    # Dynamo's runtime, from 1.6 on, waits for NATS without end and says nothing.
    await ensure_reachable(_nats_url())
    await Worker(engine, engine.worker_config()).run()


def _nats_url() -> str:
    return os.environ.get("NATS_SERVER", _DEFAULT_NATS_URL)


async def _prefill(worker: PrefillWorker, work: WorkRequest, context: Context) -> JsonObject:
    """The reply to a prompt or to a helper's task."""
    with _ClientWatch(context) as client:
        if work.helper_task is not None:
            await client.unless_gone(worker.help(RequestId(context.id()), work))
            return helper_chunk()
        request_id = RequestId(context.id()) if work.plan is None else work.plan.request_id
        return prefill_chunk(await client.unless_gone(worker.prefill(request_id, work)))


async def _decode(
    worker: DecodeWorker, work: WorkRequest, handover: Handover | None, context: Context, worker_id: WorkerId
) -> AsyncIterator[JsonObject]:
    """The answer's tokens behind those that the request brings already; they end when the client goes away."""
    num_sent = 0
    with _ClientWatch(context) as client:
        async with aclosing(worker.decode(RequestId(context.id()), work, handover)) as pieces:
            piece = await client.unless_gone(_next(pieces))
            while piece is not None:
                num_sent += len(piece.token_ids)
                yield decode_chunk(
                    piece,
                    num_prompt_tokens=len(work.tokens),
                    num_sent=num_sent,
                    handover=handover,
                    worker_id=worker_id,
                )
                if context.is_stopped():
                    return
                piece = await client.unless_gone(_next(pieces))


async def _next(pieces: AsyncGenerator[Sampled, None]) -> Sampled | None:
    return await anext(pieces, None)


class _ClientWatch:
    """Cuts work short when the client goes away. Dynamo itself would look only between two chunks."""

    def __init__(self, context: Context) -> None:
        self._gone = asyncio.ensure_future(context.async_killed_or_stopped())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._gone.cancel()

    async def unless_gone(self, work: Coroutine[object, object, T]) -> T:
        """The result of `work`, which is cancelled and has ended when the client is gone.

        Raises:
            Cancelled: the client went away first.
        """
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait((working, self._gone), return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Cancelled("the client went away")
            return working.result()
        finally:
            if not working.done():
                working.cancel()
                await asyncio.wait((working,))
