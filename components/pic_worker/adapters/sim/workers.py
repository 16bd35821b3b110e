"""Simulated workers of both roles behind the ports that Dynamo's side knows."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from dataclasses import dataclass, field, replace

from msgspec import structs
from nats.aio.client import Client
from prometheus_client import CollectorRegistry

from nebula_protocol.handover import Handover, Sampled
from nebula_protocol.ids import RequestId
from pic_worker.adapters.nats.server import NatsServer
from pic_worker.core.fixed_answer import FixedAnswer
from pic_worker.decode_service import DecodeService
from pic_worker.errors import BadWorkError
from pic_worker.first_token import begin_answer
from pic_worker.metrics import WorkerMetrics
from pic_worker.prompt_cutter import PromptCutter
from pic_worker.service import PrefillService
from pic_worker.work import WorkRequest

_DEFAULT_MAX_TOKENS = 16
_LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SimPrefillWorker:
    """`PrefillWorker` on the simulated engine."""

    service: PrefillService
    cutter: PromptCutter
    metrics: WorkerMetrics
    answer: FixedAnswer
    device_capacity_tokens: int
    client: Client
    server: NatsServer
    main_task: "asyncio.Task[None]"

    @property
    def registry(self) -> CollectorRegistry:
        return self.metrics.registry

    async def prefill(self, request_id: RequestId, work: WorkRequest) -> Handover:
        request = self.cutter.engine_request(request_id, work.tokens, work.options, work.plan)
        handover = await self.service.prefill(request)
        token_id = self.answer.token(self.answer.num_said(work.tokens.tolist()))
        return structs.replace(handover, first=Sampled((token_id,), _LENGTH))

    async def help(self, request_id: RequestId, work: WorkRequest) -> None:
        if work.helper_task is None:
            raise BadWorkError("the request has no helper task")
        await self.service.help(self.cutter.helper_request(request_id, work.helper_task, work.tokens))

    def is_quiescent(self) -> bool:
        return self.service.is_quiescent()

    async def close(self) -> None:
        await self.server.stop()
        self.main_task.cancel()
        await asyncio.wait((self.main_task,))
        await self.client.close()


@dataclass(frozen=True, slots=True)
class SimDecodeWorker:
    """`DecodeWorker` that says a fixed answer at a fixed pace."""

    service: DecodeService
    answer: FixedAnswer
    device_capacity_tokens: int
    context_tokens: int
    client: Client
    registry: CollectorRegistry | None = None
    main_task: "asyncio.Task[None] | None" = None
    background: set["asyncio.Future[None]"] = field(default_factory=set)

    async def decode(
        self, request_id: RequestId, work: WorkRequest, handover: Handover | None
    ) -> AsyncGenerator[Sampled, None]:
        del request_id
        room_tokens = self.context_tokens - len(work.tokens)
        if room_tokens < 1:
            raise BadWorkError(f"a prompt of {len(work.tokens)} tokens leaves no room for an answer")
        asked_tokens = _DEFAULT_MAX_TOKENS if work.max_tokens is None else work.max_tokens
        begun = begin_answer(replace(work, max_tokens=min(asked_tokens, room_tokens)), handover)
        if begun.first is not None:
            yield begun.first
        if begun.rest is None:
            if handover is not None:
                self.in_background(self.service.obtain(handover, len(work.tokens)))
            return
        tokens, num_tokens = begun.rest.tokens, begun.rest.max_tokens or 1
        await self.service.obtain(handover, len(tokens))
        num_before, num_sent = self.answer.num_said(tokens.tolist()), 0
        async for token_id in self.service.tokens(num_before=num_before, num_tokens=num_tokens):
            num_sent += 1
            yield Sampled((token_id,), _LENGTH if num_sent == num_tokens else None)

    def in_background(self, work: Coroutine[None, None, None]) -> None:
        """Frees the prompt at its prefill worker, for which no client has to wait."""
        task = asyncio.ensure_future(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    async def close(self) -> None:
        await self.client.close()
